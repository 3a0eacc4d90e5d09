"""Frame skip: one action for several steps of an environment."""

from typing import Any

import gymnasium


class FrameSkip(gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """Repeats each action for k steps: the last observation and info, the sum of the rewards (Mnih et al.
    2015, doi:10.1038/nature14236, "Methods").

    A step that terminates or truncates the episode ends the turn, so around a `TimeLimit` the limit counts
    the environment's steps. Gymnasium's `MaxAndSkipObservation` is for Atari's pictures: it gives the larger
    of the last two observations number by number, refuses observations without a shape, and where an episode
    ends in the middle of a skip it gives older observations.

    Args:
        env: the environment.
        frame_skip: k.
    """

    def __init__(self, env: gymnasium.Env, frame_skip: int) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self, frame_skip=frame_skip)
        gymnasium.Wrapper.__init__(self, env)
        self.frame_skip = frame_skip

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        total = 0.0
        for _ in range(self.frame_skip):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, bool(terminated), bool(truncated), info
