"""More groups, where those of a rollout have nothing to compare."""

from __future__ import annotations


class DynamicSampling:
    """Asks for another group whenever one ends whose episodes all had the same return, so many times a rollout.

    Such a group gives every one of its episodes the advantage 0. It stays in the rollout's statistics. (Dynamic sampling:
    Yu et al. 2025, DAPO, arXiv:2503.14476, section 3.2.)
    """

    def __init__(self, group_size: int, most: int) -> None:
        """
        Args:
            group_size: episodes of a group.
            most: groups that may be asked for.
        """
        self._group_size, self._left = group_size, most
        self._returns: dict[int, list[float]] = {}  # of groups that have not ended

    def ended(self, episode: int, episode_return: float) -> int:
        """Told of every episode that ends, by its number; how many more are to be played for it."""
        group = episode // self._group_size
        returns = self._returns.setdefault(group, [])
        returns.append(episode_return)
        if len(returns) < self._group_size:
            return 0
        del self._returns[group]
        if self._left == 0 or min(returns) < max(returns):
            return 0
        self._left -= 1
        return self._group_size
