"""The prompts of an episode: observations in the agent's words, with memories and earlier turns."""

from typing import Any

from lgym.agents.base import TextAgent
from lgym.data.prompts.action_candidates import candidates_of
from lgym.data.prompts.conversation import Conversation, History
from lgym.data.prompts.memory_prompt import MemoryPrompt
from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.memory import RememberedTurn
from lgym.rollout import Prompt, Response


class EpisodePrompts:
    """Makes the prompts of one episode after the other.

    Args:
        agent: its words.
        builder: renders and encodes them.
        scores_candidates: whether the policy chooses between the agent's candidates; otherwise it answers
            in free text.
        history: how many earlier turns of the episode a prompt shows.
        memory: adds memories to the observations; `None` adds nothing.
    """

    def __init__(
        self,
        agent: TextAgent,
        builder: PromptBuilder,
        *,
        scores_candidates: bool = True,
        history: History = 0,
        memory: MemoryPrompt | None = None,
    ) -> None:
        self.agent = agent
        self.history: History = history
        self._builder = builder
        self._scores_candidates = scores_candidates
        self._memory = memory or MemoryPrompt(agent)
        self.begin()

    def begin(self) -> None:
        """Start an episode."""
        self.observation_text = ""  # without what memories add
        self._conversation = Conversation(self._builder, self.history)
        self._memory.begin()

    def observe(self, observation: Any, info: dict[str, Any]) -> Prompt:
        """The prompt of a new observation."""
        self.observation_text = self.agent.format_observation(observation)
        candidates = candidates_of(self.agent, observation, info) if self._scores_candidates else ()
        return self._conversation.prompt(self._memory.read(self.observation_text), candidates)

    def repeat(self) -> Prompt:
        """The prompt of the same observation once more, which a response without an action leaves
        unanswered."""
        return self._conversation.prompt(self._memory.read(self.observation_text), ())

    def respond(self, response: Response, reward: float) -> None:
        """Add the response to the last prompt to the conversation, and the turn to the episode's memory."""
        self._conversation.respond(response)
        self._memory.add(RememberedTurn(self.observation_text, str(response.action_text), reward))

    @property
    def turns(self) -> list[RememberedTurn]:
        """The turns of the episode so far, if there are memories; another list than that of the next
        episode."""
        return self._memory.turns

    def state_dict(self) -> dict[str, Any]:
        """The observation at hand, and the memories that the episode's prompts still show."""
        return {"observation_text": self.observation_text, **self._memory.state_dict(self.history)}

    def restore_memories(self, state: dict[str, Any]) -> None:
        """Show the coming observations with the memories of `state_dict`."""
        self._memory.bring_back(state.get("shown", ()))
