"""Names, tasks and words of well-known environments, mostly as Gymnasium's documentation gives them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium

from lgym.agents.base import TextAgent
from lgym.agents.blackjack import BlackjackAgent
from lgym.agents.cartpole import CartPoleAgent
from lgym.agents.cliff_walking import CliffWalkingAgent
from lgym.agents.frozen_lake import FrozenLakeAgent
from lgym.agents.maze import MazeAgent
from lgym.agents.minigrid_view import direction_text, mission_text, view_text
from lgym.agents.observation_formatter import ObservationFormatter, Reader
from lgym.agents.observation_settings import ObservationSettings
from lgym.agents.taxi import TaxiAgent
from lgym.agents.textworld import TextWorldAgent

NUMBER_FORM = ("decimals", "resolution", "words", "scale")
"""Settings of the form of numbers: where one of them is given, none is known."""


@dataclass(frozen=True)
class KnownSpace:
    """The words of one environment.

    Attributes:
        task: a sentence for the system prompt: the goal, and what pays.
        actions: names of its actions.
        settings: of its observations, as in `ObservationSettings`.
        readers: texts of parts of its observations, by label.
        agent: the agent of the environment, whose texts stand in place of the settings.
        answer_format: a sentence on the form of the answer; empty takes the action space's.
    """

    task: str = ""
    actions: Sequence[str] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    readers: Mapping[str, Reader] = field(default_factory=dict)
    agent: type[TextAgent] | None = None
    answer_format: str = ""

    def with_actions_of(self, space: gymnasium.Space[Any]) -> "KnownSpace":
        """The words of a family's member: the first actions where it has fewer, none where it has more."""
        if self.actions is None or not isinstance(space, gymnasium.spaces.Discrete):
            return self
        actions = self.actions[: int(space.n)]
        return replace(self, actions=actions if len(actions) == space.n else None)

    def formatter(
        self, space: gymnasium.Space[Any], given: ObservationSettings, agent: TextAgent | None
    ) -> ObservationFormatter:
        """The texts of a space's observations, by these words and the settings that were given.

        Args:
            space: of the observations.
            given: settings, which win.
            agent: of `agent`, bound to the environment.
        """
        if agent is not None and given == ObservationSettings():
            return ObservationFormatter(space, given, {"": agent.format_observation})
        return ObservationFormatter(space, self._merged(given), self.readers)

    def bound_agent(self, env: gymnasium.Env) -> TextAgent | None:
        """The agent of the environment, bound to it, if there is one."""
        if self.agent is None:
            return None
        agent = self.agent()
        agent.bind(env)
        return agent

    def _merged(self, given: ObservationSettings) -> ObservationSettings:
        """The settings here with those that were given, which win.

        Other names leave nothing of what goes by the names here, and one setting of the form of numbers
        nothing of that form.
        """
        if given.names is not None:
            return given
        own = {name: value for name, value in vars(given).items() if value is not None}
        known = dict(self.settings)
        if not own.keys().isdisjoint(NUMBER_FORM):
            known = {name: value for name, value in known.items() if name not in NUMBER_FORM}
        if given.drop is not None:
            known.pop("parts", None)
        return ObservationSettings(**(known | own))


def known_space(env: gymnasium.Env) -> KnownSpace:
    """The words of an environment: empty ones of an unknown one, and of spaces that a wrapper has changed."""
    plain = env.unwrapped
    names = [f"{base.__module__}:{base.__qualname__}" for base in type(plain).__mro__]
    family = next((_FAMILIES[name] for name in names if name in _FAMILIES), KnownSpace())
    known = _KNOWN.get(names[0], family.with_actions_of(plain.action_space))
    if env.observation_space != plain.observation_space:
        known = replace(known, settings={}, readers={}, agent=None)
    if env.action_space != plain.action_space:
        known = replace(known, actions=None, answer_format="")
    return known


_HILL = (
    "A car stands in a valley and is too weak to drive straight up. Swing back and forth to gain speed, and "
    "reach the flag on the right hill, at {} m, as soon as you can{}."
)
_SPEEDS = ["fast left", "slowly left", "slowly right", "fast right"]
"""Words without a middle: control has to know which way a thing moves, however slowly."""

_CAR = {
    "names": ["position", "velocity"],
    "units": {"position": "m"},
    "resolution": {"position": 0.1},
    "words": {
        "velocity": [
            *("very fast left", "fast left", "left", "slowly left"),
            *("slowly right", "right", "fast right", "very fast right"),
        ]
    },
    "scale": {"velocity": 0.035},
}
_SIDES = ["far left", "left", "right", "far right"]
_LANDER = KnownSpace(
    "Land the spacecraft softly and upright on the pad at x 0, y 0, with its left, main and right engine, or "
    "wait. Landing pays 100, a crash costs 100, and fuel costs a little.",
    ["wait", "left", "main", "right"],
    {
        "names": ["x", "y", "drift", "fall", "tilt", "spin", "left leg", "right leg"],
        "resolution": {"y": 0.2},
        "words": {
            "x": _SIDES,
            "drift": _SPEEDS,
            "fall": ["very fast", "fast", "slow", "rising slowly", "rising", "rising fast"],
            "tilt": _SIDES[::-1],  # positive is to the left
            "spin": _SPEEDS[::-1],
            "left leg": ["up", "down"],
            "right leg": ["up", "down"],
        },
        "scale": {"x": 0.2, "drift": 0.3, "fall": 0.6, "tilt": 0.2, "spin": 0.2},
    },
)
_JOINTS = [
    f"{part} {number} {what}"
    for number in (1, 2)
    for part, what in (
        ("hip", "angle"),
        ("hip", "speed"),
        ("knee", "angle"),
        ("knee", "speed"),
        ("leg", "contact"),
    )
]
_HULL = ["hull angle", "hull angular velocity", "horizontal velocity", "vertical velocity"]

_CLASSIC = "gymnasium.envs.classic_control"
_TOY = "gymnasium.envs.toy_text"

# Names of actions are one token each: all of them are read at every turn.
_KNOWN = {
    f"{_CLASSIC}.cartpole:CartPoleEnv": KnownSpace(
        "You balance a pole on a cart by pushing the cart left or right, under the side that the pole leans "
        "to. Every step that the pole leans less than twelve degrees, with the cart near the middle, pays 1.",
        CartPoleAgent.actions,
        {"names": ["cart position", "cart velocity", "pole angle", "pole angular velocity"]},
        agent=CartPoleAgent,
    ),
    f"{_CLASSIC}.mountain_car:MountainCarEnv": KnownSpace(
        _HILL.format(0.5, ": every step costs 1"), ["left", "wait", "right"], _CAR
    ),
    f"{_CLASSIC}.continuous_mountain_car:Continuous_MountainCarEnv": KnownSpace(
        _HILL.format(0.45, ": it pays 100, and strong pushes cost"), None, _CAR
    ),
    f"{_CLASSIC}.acrobot:AcrobotEnv": KnownSpace(
        "Two links hang in a chain, with a motor at the joint between them. Pull left or right, or wait, and "
        "swing to and fro until the free end is high above the fixed one, as soon as you can: every step "
        "costs 1.",
        ["left", "wait", "right"],
        {
            "names": [
                *(f"{function} {link} link" for link in ("first", "second") for function in ("cos", "sin")),
                "first link speed",
                "second link speed",
            ],
            "words": {
                "first link": [
                    *("down", "down right", "right", "up right"),
                    *("up", "up left", "left", "down left"),
                ],
                "second link": [
                    *("straight", "slightly right", "right", "far right"),
                    *("folded", "far left", "left", "slightly left"),
                ],
                "first link speed": _SPEEDS,
                "second link speed": _SPEEDS,
            },
            "scale": {"first link speed": 1.5, "second link speed": 3.0},
        },
    ),
    f"{_CLASSIC}.pendulum:PendulumEnv": KnownSpace(
        "Swing the pendulum up and hold it upright with little torque. The further from upright, the more "
        "a step costs.",
        None,
        {
            "names": ["cos pole", "sin pole", "angular velocity"],
            "words": {
                "pole": [
                    "upright",
                    *(f"{degrees} degrees left" for degrees in range(15, 180, 15)),
                    "down",
                    *(f"{degrees} degrees right" for degrees in range(165, 0, -15)),
                ],
                "angular velocity": [
                    *("very fast right", "fast right", "right", "slowly right"),
                    *("slowly left", "left", "fast left", "very fast left"),
                ],
            },
            "scale": {"angular velocity": 5.0},
        },
    ),
    "gymnasium.envs.box2d.lunar_lander:LunarLander": _LANDER,
    "gymnasium.envs.box2d.lunar_lander:LunarLanderContinuous": _LANDER,
    f"{_TOY}.blackjack:BlackjackEnv": KnownSpace(
        "You play Blackjack against a dealer. Get closer to 21 than the dealer without going over. The "
        "dealer draws up to 17. In a soft hand an ace counts 11.",
        BlackjackAgent.actions,
        {"names": ["your sum", "dealer's card", "usable ace"]},
        agent=BlackjackAgent,
    ),
    f"{_TOY}.frozen_lake:FrozenLakeEnv": KnownSpace(
        "Cross the frozen lake to the goal without falling into a hole: only the goal pays.",
        FrozenLakeAgent.actions,
        {"names": ["position"]},
        agent=FrozenLakeAgent,
    ),
    f"{_TOY}.cliffwalking:CliffWalkingEnv": KnownSpace(
        "Walk to the goal in few steps. Every step costs 1; off the cliff costs 100, and you start again.",
        CliffWalkingAgent.actions,
        {"names": ["position"]},
        agent=CliffWalkingAgent,
    ),
    f"{_TOY}.taxi:TaxiEnv": KnownSpace(
        "You drive a taxi. Drive to the passenger, pick the passenger up, drive to the destination and drop "
        "the passenger there: that pays 20, every step costs 1. You cannot drive through walls.",
        TaxiAgent.actions,
        {"names": ["state"]},
        agent=TaxiAgent,
    ),
    "lgym.envs.maze:MazeEnv": KnownSpace(
        "You walk through a maze. Reach the goal in few moves: every move costs 1, also one into a wall.",
        MazeAgent.actions,
        agent=MazeAgent,
    ),
    "gymnasium.envs.box2d.bipedal_walker:BipedalWalker": KnownSpace(
        "Walk forward on two legs without falling: forward pays, a fall costs 100, strong torque a little.",
        None,
        {
            "names": [*_HULL, *_JOINTS, *(f"distance {number}" for number in range(10))],
            "words": {
                **dict.fromkeys([*_HULL, *_JOINTS], True),
                **{f"leg {number} contact": ["in the air", "on the ground"] for number in (1, 2)},
                **{f"distance {number}": ["near", "far"] for number in range(10)},
            },
            "scale": {
                "hull angle": 0.3,
                "hull angular velocity": 0.5,
                "horizontal velocity": 0.3,
                "vertical velocity": 0.3,
                **{f"{joint} {number} speed": 1.0 for joint in ("hip", "knee") for number in (1, 2)},
                **{f"{joint} {number} angle": math.pi / 4 for joint in ("hip", "knee") for number in (1, 2)},
            },
        },
    ),
}

_FAMILIES = {
    "lgym.envs.text_env:TextEnv": KnownSpace(
        "You play a game by text. Its messages tell the rules and how to answer."
    ),
    "lgym.envs.reasoning:ReasoningGymEnv": KnownSpace(
        "Answer the question.", answer_format="Answer with the result alone, without a sentence."
    ),
    "lgym.envs.textworld:TextWorldEnv": KnownSpace(
        "You play a text adventure. Do the steps of the goal in their order.",
        answer_format="Answer with one command.",
        agent=TextWorldAgent,
    ),
    "minigrid.minigrid_env:MiniGridEnv": KnownSpace(
        "You are in a room of square cells and fulfill a mission: the sooner, the more it pays. Left and "
        "right turn you, pick takes what is before you, open opens and shuts it.",
        ["left", "right", "forward", "pick", "drop", "open", "done"],
        {"parts": ["mission", "direction", "image"]},
        {"mission": mission_text, "direction": direction_text, "image": view_text},
    ),
}
_FAMILIES["lgym.envs.babyai:BabyAIEnv"] = _FAMILIES["minigrid.minigrid_env:MiniGridEnv"]
