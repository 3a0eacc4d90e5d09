"""The tasks of reasoning-gym (Stojanovski et al. 2025, arXiv:2505.24760) as environments of one turn."""

import pickle
import string
import zlib
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, Literal, get_args

import gymnasium
from gymnasium.spaces import Text
from gymnasium.utils import EzPickle

from lgym.types import ConfigError

LONGEST = 100_000  # the characters of a question

LONGEST_ANSWER = 10_000

Split = Literal["train", "test"]
TEST_SHARE = 10  # one question in so many is of the test split
MOST_DRAWS = 1000


class ReasoningGymEnv(gymnasium.Env[str, str], EzPickle):
    """A question of one of reasoning-gym's tasks, such as leg_counting, and one answer.

    The reward is the task's own score of the answer, 0 to 1; a full score is a success. `reset(seed=s)` asks
    question number `s % items`, so that equal seeds share one. The info has the right answer, as
    `policy_commands`, which `lgym.agents.experts.Walkthrough` demonstrates; of a task that tells none, such
    as rush_hour, it has no such key. An answer that the task's own score cannot read is worth 0.

    Args:
        task: its name.
        items: the number of draws from the task's questions.
        first_item: the number of the first. Other draws may have equal questions, where a task has few.
        config: the task's own settings, such as {max_animals: 3}.
        split: test has one question in ten, by its text, and train the others, so that nothing is evaluated
            that was trained on. Null has all.

    Raises:
        ValueError: if reasoning-gym is not installed, or has no such task or setting, or no question of the
            split.
    """

    observation_space = Text(LONGEST, charset=string.printable)
    action_space = Text(LONGEST_ANSWER, min_length=0, charset=string.printable)

    def __init__(
        self,
        task: str,
        items: int = 1000,
        first_item: int = 0,
        config: Mapping[str, Any] | None = None,
        split: Split | None = None,
    ) -> None:
        EzPickle.__init__(self, task, items, first_item, config, split)
        if split is not None and split not in get_args(Split):
            raise ConfigError(f"split is {split!r}; choose train or test, or leave it out.")
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
            self._draws = partial(_draws, task, first_item + items, pickle.dumps(dict(config or {})))
            self._draws(seed=0)
        # An unknown task, an unknown setting, and one that cannot be
        except (ValueError, TypeError, AssertionError) as error:
            known = reasoning_gym.factory.DATASETS
            way_out = "Change config." if task in known else f"Its tasks are {', '.join(sorted(known))}."
            raise ConfigError(
                f"reasoning-gym cannot make the task {task!r} with {dict(config or {})}: {error}. {way_out}"
            ) from error
        self.items = items
        self.first_item = first_item
        self.split = split
        self._question: dict[str, Any] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Ask the seed's question; without a seed, any of them."""
        super().reset(seed=seed)
        number = int(self.np_random.integers(self.items)) if seed is None else seed % self.items
        self._question = self._find(self.first_item + number)
        return self._question["question"].strip(), self._info(False)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer the question, which ends the episode."""
        try:
            score = float(self._draws(seed=0).score_answer(answer=action.strip(), entry=self._question))
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):  # of another form
            score = 0.0
        return "Answered.", score, True, False, self._info(score >= 1.0)

    def _find(self, number: int) -> dict[str, Any]:
        """The draw of that number; of those that are of the other split the next one, from another seed."""
        for draw in range(MOST_DRAWS):
            draws = self._draws(seed=draw * (self.first_item + self.items))  # seeds are added to numbers
            question: dict[str, Any] = draws[number]
            if self.split in (None, _split(question["question"].strip())):
                return question
        raise ConfigError(
            f"The task has few questions: {MOST_DRAWS} draws have none of the split {self.split!r}. Change "
            "config, or leave split out."
        )

    def _info(self, success: bool) -> dict[str, Any]:
        answer = self._question["answer"]
        return {"success": success} | ({} if answer is None else {"policy_commands": [str(answer)]})


@lru_cache(maxsize=16)
def _draws(task: str, size: int, config: bytes, seed: int) -> Any:
    """The dataset of a task, one for all environments of a process: some hold a dictionary."""
    import reasoning_gym

    return reasoning_gym.create_dataset(task, size=size, seed=seed, **pickle.loads(config))


def _split(question: str) -> Split:
    return "train" if zlib.crc32(question.encode()) % TEST_SHARE else "test"


gymnasium.register("lgym/ReasoningGym-v0", "lgym.envs.reasoning:ReasoningGymEnv")
