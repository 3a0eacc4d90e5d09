"""Random streams of a run: one for each purpose, and reset seeds that no two stages share."""

from typing import Literal, get_args

import numpy as np

Purpose = Literal["resets", "actions", "order"]
"""The first reset seed; sampling of actions; the order of minibatches and the draws of turns to imitate. A
purpose's place here is in its stream's key."""

STAGES: dict[str, tuple[int, int]] = {
    "fit": (0, 2**30),
    "validate": (2**30, 2**28),
    "test": (2**30 + 2**28, 2**28),
    "predict": (2**30 + 2 * 2**28, 2**28),
}
"""The lowest reset seed of each stage, and the number of its seeds. Environments take numbers from 0 to 2**31
- 1."""


def stream(seed: int, stage: str, purpose: Purpose, rank: int = 0) -> np.random.SeedSequence:
    """The random stream of a purpose, a stage and a process, for `np.random.default_rng`.

    None is that of an environment, which makes its generator of a reset seed without a spawn key.

    Args:
        seed: the run's.
        stage: fit, validate, test or predict.
        purpose: see `Purpose`.
        rank: the process.
    """
    return np.random.SeedSequence(
        seed, spawn_key=(get_args(Purpose).index(purpose), list(STAGES).index(stage), rank)
    )


def first_reset_seed(seed: int, stage: str, rank: int = 0, size: int = 1) -> int:
    """The reset seed of a stage's first episode; those that follow take the next numbers.

    Each stage has a range of its own and each process a part of it, in whose lower half the first seed is
    drawn from the run's. So whatever that is, no episode of one stage is another's, nor one process's
    another's, for 2**29 / size episodes of training and 2**27 of an evaluation.

    Args:
        seed: the run's.
        stage: fit, validate, test or predict.
        rank: the process.
        size: the number of processes.
    """
    start, width = STAGES[stage]
    width //= size
    return (
        start
        + width * rank
        + int(np.random.default_rng(stream(seed, stage, "resets", rank)).integers(width // 2))
    )
