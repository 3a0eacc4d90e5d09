"""Dynamic sampling: more groups, where those of a rollout have zero variance."""

from collections import defaultdict


class DynamicSampling:
    """Asks for another group whenever one ends whose episodes all had the same return, up to a limit per
    rollout.

    Such a zero-variance group gives every one of its episodes the advantage 0. It stays in the rollout's
    statistics. "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", Yu et al. 2025,
    arXiv:2503.14476, section 3.2.

    Args:
        group_size: episodes of a group.
        max_groups: the groups that may be asked for.
    """

    def __init__(self, group_size: int, max_groups: int) -> None:
        self._group_size = group_size
        self._groups_left = max_groups
        self._returns: dict[int, list[float]] = defaultdict(list)  # of each group

    def ended(self, episode: int, episode_return: float) -> int:
        """Record an episode's return. Returns the number of episodes to play in addition."""
        returns = self._returns[episode // self._group_size]
        returns.append(episode_return)
        if len(returns) < self._group_size or min(returns) < max(returns) or self._groups_left == 0:
            return 0
        self._groups_left -= 1
        return self._group_size
