"""The tasks of reasoning-gym (Stojanovski et al. 2025, arXiv:2505.24760) as environments of one turn."""

import string
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.spaces import Text
from gymnasium.utils import EzPickle

from lgym.types import ConfigError

LONGEST = 100_000  # the characters of a question

LONGEST_ANSWER = 10_000


class ReasoningGymEnv(gymnasium.Env[str, str], EzPickle):
    """A question of one of reasoning-gym's tasks, such as leg_counting, and one answer.

    The reward is the task's own score of the answer, 0 to 1; a full score is a success. `reset(seed=s)` asks
    question number `s % items` of the range, so that equal seeds share one. The info has the right answer, as
    `policy_commands`, which `lgym.agents.experts.Walkthrough` demonstrates; of a task that tells none, such
    as rush_hour, it has no such key. An answer that the task's own score cannot read is worth 0.

    Args:
        task: its name.
        items: the number of different questions.
        first_item: the number of the first. Ranges that do not overlap are questions kept apart, to train and
            to evaluate on.
        config: the task's own settings, such as {max_animals: 3}.

    Raises:
        ValueError: if reasoning-gym is not installed, or has no such task or setting.
    """

    observation_space = Text(LONGEST, charset=string.printable)
    action_space = Text(LONGEST_ANSWER, min_length=0, charset=string.printable)

    def __init__(
        self, task: str, items: int = 1000, first_item: int = 0, config: Mapping[str, Any] | None = None
    ) -> None:
        EzPickle.__init__(self, task, items, first_item, config)
        if items < 1 or first_item < 0:
            raise ConfigError(
                f"items is {items} and first_item {first_item}; give 1 or more items, from number 0 or later."
            )
        try:
            import reasoning_gym
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"lgym/ReasoningGym-v0 needs a package that this Python does not have ({error}). "
                'Install it: pip install "lgym[reasoning]".'
            ) from error
        try:
            self._questions = reasoning_gym.create_dataset(
                task, size=first_item + items, seed=0, **(config or {})
            )
        # An unknown task, an unknown setting, and one that cannot be
        except (ValueError, TypeError, AssertionError) as error:
            known = reasoning_gym.factory.DATASETS
            way_out = "Change config." if task in known else f"Its tasks are {', '.join(sorted(known))}."
            raise ConfigError(
                f"reasoning-gym cannot make the task {task!r} with {dict(config or {})}: {error}. {way_out}"
            ) from error
        self.items = items
        self.first_item = first_item
        self._question: dict[str, Any] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Ask the seed's question; without a seed, any of them."""
        super().reset(seed=seed)
        number = int(self.np_random.integers(self.items)) if seed is None else seed % self.items
        self._question = self._questions[self.first_item + number]
        return self._question["question"].strip(), self._info(False)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer the question, which ends the episode."""
        try:
            score = float(self._questions.score_answer(answer=action.strip(), entry=self._question))
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):  # of another form
            score = 0.0
        return "Answered.", score, True, False, self._info(score >= 1.0)

    def _info(self, success: bool) -> dict[str, Any]:
        answer = self._question["answer"]
        return {"success": success} | ({} if answer is None else {"policy_commands": [str(answer)]})


gymnasium.register("lgym/ReasoningGym-v0", "lgym.envs.reasoning:ReasoningGymEnv")
