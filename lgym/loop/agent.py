"""`Agent`: LlamaGym's three methods and its loop, on lgym's policies, transcripts and losses."""

import warnings
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from lgym.agents import TextAgent
from lgym.agents.parsing import parsed_action, read_action
from lgym.plain_text import truncate_middle
from lgym.types import Message, ParsedAction

if TYPE_CHECKING:
    from lgym.loop.learner import LoopLearner

# Errors of reading a text where the action is not in it: a failed `int`, a missing key, no match to take a
# group of.
NOT_FOUND = (ValueError, LookupError, AttributeError, TypeError)


class _FromMethod:
    """`system_prompt` as `get_system_prompt()` says it; an agent may still keep an attribute of its own by
    that name."""

    def __get__(self, agent: "Agent | None", owner: type | None = None) -> Any:
        return self if agent is None else agent.get_system_prompt()


class Agent(TextAgent):
    """An agent that plays and learns in a loop of your own:

        agent = BlackjackAgent(model, tokenizer, device)
        for episode in range(5000):
            observation, info = env.reset()
            done = False
            while not done:
                action = agent.act(observation)
                observation, reward, terminated, truncated, info = env.step(action)
                agent.assign_reward(reward)
                done = terminated or truncated
            train_stats = agent.terminate_episode()

    A subclass says three things: `get_system_prompt`, `format_observation` and `extract_action`. Without a
    model it is a `TextAgent` like any other, and can be named in a YAML as `data.agent`.

    Args:
        model: any causal model of transformers; with adapters of peft, these are trained; a value head around
            it is replaced by lgym's. None makes words without a model, for a YAML.
        tokenizer: the model's.
        device: where it runs, such as `cpu` or `cuda:0`; None leaves it where it is.
        generate_config_dict: how responses are drawn, see `lgym.loop.keywords.GENERATION`.
        ppo_config_dict: how it learns, see `lgym.loop.keywords`.
        lora: for a model without adapters: True adds those of the registry, a mapping (`r`, `alpha`,
            `dropout`, `target_modules`) others, False trains every weight.
        history: how many earlier turns of an episode the model is shown.
        seed: of the adapters' start, of what is sampled and of the order of minibatches; None is the
            ppo_config_dict's, else 0.

    Raises:
        ValueError: if a keyword has no meaning here, or does not go with the model.
    """

    json_key = None  # `extract_action` alone reads a response, unless a subclass sets this or `pattern`

    system_prompt = _FromMethod()

    model: Any = None
    """The model in training, with its adapters: `agent.model.save_pretrained(folder)` writes these."""

    tokenizer: Any = None
    device: Any = None
    _learner: "LoopLearner | None" = None
    _warned = False

    def __init__(
        self,
        model: Any = None,
        tokenizer: Any = None,
        device: Any = None,
        generate_config_dict: Mapping[str, Any] | None = None,
        ppo_config_dict: Mapping[str, Any] | None = None,
        *,
        lora: Mapping[str, Any] | bool = True,
        history: int | Literal["full"] = "full",
        seed: int | None = None,
    ) -> None:
        if model is not None:
            from lgym.loop.learner import LoopLearner

            self._learner = LoopLearner(
                model,
                tokenizer,
                device,
                generate_config_dict or {},
                ppo_config_dict or {},
                lora=lora,
                history=history,
                seed=seed,
            )
            self.model, self.tokenizer = self._learner.llm.model, self._learner.llm.tokenizer
            self.device = self._learner.llm.device
        elif generate_config_dict is not None or ppo_config_dict is not None:
            raise ValueError(
                f"{type(self).__name__} was given keywords for a model, and no model. Give one, such as "
                "those of lgym.models.load_model_and_tokenizer; in a YAML, say under `model:` what is said "
                "here."
            )

    @abstractmethod
    def get_system_prompt(self) -> str:
        """The rules and the form of the answer, said once an episode."""

    @abstractmethod
    def extract_action(self, response: str) -> Any:
        """The environment's action that a response names. `None`, or an error of reading (`NOT_FOUND`), is a
        failure."""

    def parse(self, text: str) -> ParsedAction:
        """The result of `extract_action` for a response, as data; after JSON and `pattern` where the agent
        has set them."""
        return read_action(
            text.strip(), self._extracted, actions=self.actions, json_key=self.json_key, pattern=self.pattern
        )

    def _extracted(self, text: str) -> ParsedAction:
        try:
            action = self.extract_action(text)
        except NOT_FOUND as error:
            reason = f"extract_action raised {type(error).__name__}: {error}"
            if not isinstance(error, ValueError) and self._learner is None:
                self._warn_once(f"{reason}, for {text!r}. Counted as unread.")  # may be a mistake in its code
            return ParsedAction.failure(reason)
        return parsed_action(action, text)

    def _warn_once(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"{type(self).__name__}: {message}", stacklevel=3)

    # -- the loop
    # -------------------------------------------------------------------------------------------------------

    def act(self, observation: Any) -> Any:
        """The action that the model's response to an observation names; `default_action` (None) where it
        names none.

        Such a turn counts like any other: what is paid until the next one is its reward.
        """
        turn = self._trained.respond(self.system_prompt, self.format_observation(observation))
        parsed = self.parse(turn.response.text)
        turn.parsed = parsed.ok
        if not parsed.ok:
            self._warn_once(
                f"the response {truncate_middle(turn.response.text, 200)!r} names no action "
                f"({truncate_middle(parsed.reason, 300)}). Such a turn plays default_action, which is "
                f"{self.default_action!r}, and is learned from like any other; rollout/parse_rate is the "
                "share that named one. Where it stays low, agent.imitate shows the form of an answer."
            )
        return parsed.action if parsed.ok else self.default_action

    def assign_reward(self, reward: float) -> None:
        """Pays the last turn; several payments of one turn add up. Raises `ValueError` before the first
        turn."""
        turns = self._trained.episode.turns
        if not turns:
            raise ValueError(
                f"A reward of {float(reward)} before the episode's first turn: call agent.act(observation) "
                "first."
            )
        turns[-1].reward += float(reward)

    def terminate_episode(self, train: bool = True, *, truncated_at: Any = None) -> dict[str, float]:
        """Ends the episode, and learns once the episodes kept have a batch of turns.

        Args:
            train: whether it is kept to learn from.
            truncated_at: where a time limit, and no end of the game, stopped it: the last observation, whose
                value stands for the rewards that would have followed. By default nothing would have followed.

        Returns:
            The metrics of docs/metrics.md where it learned, else an empty dict.
        """
        text = None if truncated_at is None or not train else self.format_observation(truncated_at)
        return self._trained.end(train, text)

    def imitate(self, turns: Iterable[tuple[Any, str]], epochs: int = 4) -> dict[str, float]:
        """Learns to answer as it is shown, by supervised learning: for a model that does not come by itself
        to the answers that `extract_action` reads.

        Args:
            turns: observations and the responses to them, each learned as the first turn of an episode.
            epochs: passes over them.

        Returns:
            `loss/sft` of the last pass, nats a token, and `optim/steps`.

        Raises:
            ValueError: if there are none, if one names no action, or if episodes wait to be learned from.
        """
        from lgym.data.imitation.demonstrations import Demonstration

        shown = [
            Demonstration(self.format_observation(observation), response) for observation, response in turns
        ]
        unread = next((one.response_text for one in shown if not self.parse(one.response_text).ok), None)
        if not shown or epochs < 1:
            raise ValueError(
                f"There are {len(shown)} turns to imitate, in {epochs} epochs: give at least one of each."
            )
        if unread is not None:
            raise ValueError(
                f"{type(self).__name__}.extract_action finds no action in {unread!r}, which is to be "
                "imitated."
            )
        return self._trained.imitate(self, shown, epochs)

    @property
    def current_episode_messages(self) -> list[Message]:
        """The conversation of the episode in hand."""
        return [{"role": "system", "content": self.system_prompt}, *self._trained.episode.messages]

    @property
    def current_episode_rewards(self) -> list[float]:
        """The reward of each turn of the current episode."""
        return [turn.reward for turn in self._trained.episode.turns]

    def state_dict(self) -> dict[str, Any]:
        """The state to `torch.save` and go on from the last update: what is trained, the optimizer's state,
        chance."""
        return self._trained.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state_dict` returned; episodes that were not learned from are dropped."""
        self._trained.load_state_dict(state)

    @property
    def _trained(self) -> "LoopLearner":
        if self._learner is None:
            raise ValueError(
                f"This {type(self).__name__} has no model to play with: make it with a model and its "
                "tokenizer, such as those of lgym.models.load_model_and_tokenizer."
            )
        return self._learner
