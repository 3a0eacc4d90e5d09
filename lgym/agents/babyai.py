"""An agent for BabyAI's levels."""

from collections.abc import Mapping, Sequence
from typing import Any

from lgym.agents.base import TextAgent
from lgym.agents.minigrid_view import mission_text, view_text
from lgym.memory.entries import Memory, RememberedTurn


class BabyAIAgent(TextAgent):
    """BabyAI's levels (ids that begin with BabyAI-, `pip install "lgym[minigrid]"`) as BabyAI-Text words them
    (Carta et al. 2023, GLAM, arXiv:2302.02662): the mission, what is seen and carried, and six actions.

    What is not in view is not said, and neither is the direction. `data.history` shows earlier turns beside
    it, as GLAM shows the last two; `data.working_memory` no more than the last answers, in fewer tokens: "You
    did: turn left, turn left, go forward."
    """

    system_prompt = (
        "You are in a room of square cells and fulfill a mission. "
        "Answer with one action: turn left, turn right, go forward, pick up, drop or toggle."
    )
    actions = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")

    def format_observation(self, observation: Mapping[str, Any]) -> str:
        return f"{mission_text(observation['mission'])} {view_text(observation['image'])}"

    def summarize(self, turns: Sequence[RememberedTurn]) -> str:
        return ", ".join(turn.answer for turn in turns)

    def render_memory(self, observation_text: str, recent: str, similar: Sequence[Memory]) -> str:
        done = f"{observation_text} You did: {recent}." if recent else observation_text
        return super().render_memory(done, "", similar)
