"""MiniGrid's symbols in words, as BabyAI-Text has them."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from lgym.agents import GeneralAgent
from lgym.agents.known_spaces import known_space
from lgym.agents.minigrid_view import direction_text, view_text

WALL, LAVA, OPEN_GREEN_DOOR, RED_BALL, YELLOW_KEY, EMPTY = (
    (2, 5, 0),
    (9, 0, 0),
    (4, 1, 0),
    (6, 0, 0),
    (5, 4, 0),
    (1, 0, 0),
)


def view(**cells):
    """A view of 7 by 7 cells in which these are `forward_right` of the agent: f2 r1 is given as f2r1."""
    image = np.zeros((7, 7, 3), dtype=np.uint8)
    for place, symbol in cells.items():
        forward, right = place[1:].split("r")
        image[3 + int(right.replace("_", "-")), 6 - int(forward)] = symbol
    return image


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        ({}, "You see nothing."),
        ({"f0r0": EMPTY, "f1r0": EMPTY}, "You see nothing."),
        ({"f1r2": RED_BALL}, "You see a red ball 2 steps right and 1 step forward."),
        ({"f0r_1": OPEN_GREEN_DOOR}, "You see an open green door 1 step left."),
        (
            {"f1r0": (4, 3, 2), "f2r0": (4, 3, 1)},
            "You see a locked purple door 1 step forward, a closed purple door 2 steps forward.",
        ),
        ({"f3r0": LAVA, "f2r0": LAVA}, "You see lava 2 steps forward, lava 3 steps forward."),
        # of the walls the nearest ahead and to each side
        (
            {f"f{n}r0": WALL for n in (3, 4)} | {"f0r2": WALL, "f0r3": WALL, "f0r_3": WALL, "f2r2": WALL},
            "You see a wall 3 steps forward, a wall 3 steps left, a wall 2 steps right.",
        ),
        ({"f2r0": WALL, "f4r0": (8, 1, 0)}, "You see a green goal 4 steps forward, a wall 2 steps forward."),
        (
            {"f0r0": YELLOW_KEY, "f1r0": (7, 2, 0)},
            "You see a blue box 1 step forward. You carry a yellow key.",
        ),
    ],
)
def test_views(cells, text):
    assert view_text(view(**cells)) == text


def test_directions():
    assert [direction_text(number) for number in range(4)] == [
        f"You face {name}." for name in ("east", "south", "west", "north")
    ]


def test_minigrid_from_its_id_alone():
    """What the words say is what is there: the agent follows them to the key."""
    pytest.importorskip("minigrid")
    from lgym.envs import make_env

    env = make_env("MiniGrid-DoorKey-5x5-v0")
    agent = GeneralAgent()
    agent.bind(env)
    assert agent.actions == ("left", "right", "forward", "pick", "drop", "open", "done")
    observation, _ = env.reset(seed=0)
    text = agent.format_observation(observation)
    assert text.startswith(
        "Mission: use the key to open the door and then get to the goal. You face west. You see "
    )
    assert "a yellow key 1 step right" in text
    for action in ("right", "pick"):
        observation, *_ = env.step(agent.parse(action).action)
    assert agent.format_observation(observation).endswith("You carry a yellow key.")
    agent = GeneralAgent(drop=["direction", "mission"])
    agent.bind(env)
    assert agent.format_observation(observation).startswith("You see ")


def test_a_level_of_fewer_actions_has_the_first_ones():
    """Catches seven names for three actions, which are refused: `lgym fit --data.env` did not begin."""
    pytest.importorskip("minigrid")
    from lgym.envs import make_env

    agent = GeneralAgent()
    agent.bind(make_env("MiniGrid-Dynamic-Obstacles-5x5-v0"))
    assert list(agent.actions) == ["left", "right", "forward"]
    words = known_space(make_env("MiniGrid-Empty-5x5-v0"))
    assert words.with_actions_of(Discrete(8)).actions is None
    assert words.with_actions_of(Box(0, 1)).actions == words.actions


def test_numbers_and_names_are_minigrids_own():
    constants = pytest.importorskip("minigrid.core.constants")
    from lgym.agents import minigrid_view

    for names, numbers in (
        (minigrid_view.KINDS, constants.OBJECT_TO_IDX),
        (minigrid_view.COLORS, constants.COLOR_TO_IDX),
        (minigrid_view.DOORS, constants.STATE_TO_IDX),
    ):
        assert {name: number for number, name in enumerate(names)} == numbers


def test_a_view_of_another_form_is_refused():
    """The whole grid as a picture has no agent in the middle of its last row."""
    pytest.importorskip("minigrid")
    from minigrid.wrappers import FullyObsWrapper

    from lgym.envs import make_env

    with pytest.raises(ValueError, match="part 'image' is an array of 75 numbers"):
        GeneralAgent().bind(FullyObsWrapper(make_env("MiniGrid-DoorKey-5x5-v0")))
