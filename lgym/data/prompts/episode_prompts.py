"""The prompts of an episode: observations in the agent's words, with memories and earlier turns."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from lgym.agents.base import TextAgent
from lgym.data.prompts.action_candidates import candidates_of
from lgym.data.prompts.conversation import Conversation, History
from lgym.data.prompts.memory_prompt import MemoryPrompt, remembered
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
        self._candidates: tuple[str, ...] = ()
        self.turns: list[RememberedTurn] = []  # of the episode so far, if there are memories
        self._shown: list[str] = []  # observations with their memories
        self._restored: deque[str | None] = deque()  # the coming ones, as they were shown before
        self._conversation = Conversation(self._builder, self.history)

    def observe(self, observation: Any, info: dict[str, Any], truncated: bool = False) -> Prompt:
        """The prompt of a new observation. One behind which nothing is played, where the episode was
        `truncated`, may have no candidates: it then has those of the observation before."""
        self.observation_text = self.agent.format_observation(observation)
        if self._scores_candidates and not (truncated and not self.agent.candidates(observation, info)):
            self._candidates = candidates_of(self.agent, observation, info)
        return self.prompt(self._candidates)

    def prompt(self, candidates: Sequence[str] = ()) -> Prompt:
        """The prompt of the observation at hand; once more where a response without an action leaves it
        unanswered."""
        if self._restored:
            text = self._restored.popleft() or self.observation_text
        else:
            text = self._memory.read(self.observation_text, self.turns)
        self._shown.append(text)
        return self._conversation.prompt(text, candidates)

    def is_asked(self, prompt: Prompt, observation_text: str) -> bool:
        """True if the text, in place of that of the observation at hand, gives the very same prompt; for
        prompts without history."""
        return prompt == self._conversation.prompt(observation_text, prompt.candidates)

    def respond(self, response: Response, reward: float) -> None:
        """Add the response to the last prompt to the conversation, and the turn to the episode's memory."""
        self._conversation.respond(response)
        if self._memory.remembers:
            text = remembered(self.observation_text)
            self.turns.append(RememberedTurn(text, str(response.action_text), reward))

    def state_dict(self) -> dict[str, Any]:
        """The observation at hand, and the texts read in this episode as far as its prompts still show them:
        memories may since have changed."""
        state: dict[str, Any] = {"observation_text": self.observation_text}
        if self._memory.remembers:
            earlier = [None] * (len(self._shown) - 1) if self.history == 0 else self._shown[:-1]
            state["shown"] = [*earlier, *self._shown[-1:]]
        return state

    def restore_memories(self, state: dict[str, Any]) -> None:
        """Show the coming observations with the memories of `state_dict`."""
        self._restored = deque(state.get("shown", ()))
