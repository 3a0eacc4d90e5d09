"""An agent for BabyAI's levels."""

from collections.abc import Mapping
from typing import Any

from lgym.agents.base import TextAgent
from lgym.agents.minigrid_view import mission_text, view_text


class BabyAIAgent(TextAgent):
    """BabyAI's levels (ids that begin with BabyAI-, `pip install "lgym[minigrid]"`) as BabyAI-Text words them
    (Carta et al. 2023, GLAM, arXiv:2302.02662): the mission, what is seen and carried, and six actions.

    What is not in view is not said, and neither is the direction. `data.history` shows earlier turns beside
    it, as GLAM shows the last two.
    """

    system_prompt = (
        "You are in a room of square cells and fulfill a mission. "
        "Answer with one action: turn left, turn right, go forward, pick up, drop or toggle."
    )
    actions = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")

    def format_observation(self, observation: Mapping[str, Any]) -> str:
        return f"{mission_text(observation['mission'])} {view_text(observation['image'])}"
