"""Sharding of a run over its processes: all take the same number of steps and none repeats another's work."""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from lgym import distributed
from lgym.data.rollout.collector import Remember


def shard_range(total: int) -> tuple[int, int]:
    """This process's contiguous shard of `total` items: its first index and its size."""
    size, rank = distributed.world_size(), distributed.rank()
    start = total * rank // size
    return start, total * (rank + 1) // size - start


def minibatches(batch: Any, size: int, order: Sequence[int]) -> Iterator[Any]:
    """One pass over a `ResponseBatch`, in as many minibatches in every process as the largest
    needs.

    Where this process needs fewer, they are smaller; what is missing then is filled up with minibatches of
    weight 0.
    """
    parts = batch.split(size, order)
    count = max(distributed.all_gather_object(len(parts)))
    if len(parts) < count:
        finer = batch.split(-(-size * len(parts) // count), order)
        parts = finer if len(finer) <= count else parts
    for part in parts:
        yield batch.select(part, loss_scale=batch.loss_scale * count)
    for _ in range(count - len(parts)):
        yield batch.select(parts[0][:1], loss_scale=0.0)


def store_from_all_ranks(store: Remember | None) -> Remember | None:
    """Wrap a store so that the episodes of all processes are stored in each of them."""
    if store is None:
        return None
    return lambda episodes: store(
        [episode for shard in distributed.all_gather_object(episodes) for episode in shard]
    )


def rank_state(states: Sequence[Any]) -> Any | None:
    """This process's state of those that all processes saved; `None` where there were fewer of them."""
    if len(states) != distributed.world_size():
        warnings.warn(
            f"The checkpoint was written by {len(states)} processes and {distributed.world_size()} go on "
            "from it. They do so soundly, but not on the course that the run would have had: whoever has no "
            "predecessor begins with new episodes.",
            stacklevel=2,
        )
    return states[distributed.rank()] if distributed.rank() < len(states) else None
