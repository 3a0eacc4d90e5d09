from gymnasium import ActionWrapper
from gymnasium.spaces import Dict, MultiDiscrete


class FlatActions(ActionWrapper):
    """A Tuple or Dict of Discrete actions as one MultiDiscrete action."""

    def __init__(self, env):
        super().__init__(env)
        parts = env.action_space.values() if isinstance(env.action_space, Dict) else env.action_space
        self.action_space = MultiDiscrete([part.n for part in parts])

    def action(self, action):
        is_dict = isinstance(self.env.action_space, Dict)
        return dict(zip(self.env.action_space, action, strict=True)) if is_dict else tuple(action)
