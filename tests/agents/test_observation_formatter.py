"""Observations of every kind of space in words."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    Sequence,
    Text,
    Tuple,
    flatten,
    flatten_space,
)

from lgym.agents.observation_formatter import ObservationFormatter

CAR = Box(np.array([-1.2, -0.07]), np.array([0.6, 0.07]), dtype=np.float64)
ROBOT = Dict(robot=Box(-np.inf, np.inf, (2,)), door=Discrete(3))
PAIR = Tuple((Discrete(5), Box(0, 1, (1,))))


@pytest.mark.parametrize(
    ("space", "settings", "observation", "text"),
    [
        (Discrete(16), {}, np.int64(14), "14"),
        (Discrete(16), {"names": ["floor"], "units": {"floor": "m"}}, 14, "floor: 14 m"),
        # the ranges 1.8 and 0.14 have steps of 0.01 and 0.001
        (CAR, {}, [-0.476, 0.0334], "0: -0.48, 1: 0.033"),
        (CAR, {"decimals": 1}, [-0.476, 0.0334], "0: -0.5, 1: 0.0"),
        (
            CAR,
            {"names": ["x", "v"], "decimals": {"v": 4}, "units": {"x": "m"}},
            [-0.476, 0.0334],
            "x: -0.48 m, v: 0.0334",
        ),
        (CAR, {}, [-0.001, -0.0001], "0: 0.00, 1: 0.000"),  # not -0.00
        (Box(-np.inf, np.inf, (1,)), {}, [1234.567], "1234.57"),
        (Box(0, 5000, ()), {}, np.float32(1234.567), "1235"),
        (Box(0, 9, (3,), np.uint8), {"decimals": 3}, np.array([1, 2, 3]), "0: 1, 1: 2, 2: 3"),
        (Box(0, 9, (2, 3), np.int64), {}, [[1, 2, 3], [4, 5, 6]], "1 2 3\n4 5 6"),
        (Box(0, 1, (1, 2)), {}, [[0.25, 0.5]], "0.25 0.50"),
        (MultiDiscrete([4, 5]), {}, [3, 4], "0: 3, 1: 4"),
        (MultiBinary(2), {"names": ["light", "door"]}, [1, 0], "light: yes, door: no"),
        (PAIR, {}, (3, [0.5]), "0: 3, 1: 0.50"),
        (PAIR, {"names": ["floor", "height"]}, (3, [0.5]), "floor: 3, height: 0.50"),
        (ROBOT, {}, {"robot": [1, 2], "door": 0}, "robot 0: 1.00, robot 1: 2.00, door: 0"),
        (
            ROBOT,
            {"names": {"robot": ["x", "y"]}, "decimals": {"robot y": 0}, "units": {"robot x": "m"}},
            {"robot": [1, 2], "door": 0},
            "robot x: 1.00 m, robot y: 2, door: 0",
        ),
        (Text(20), {}, "You see a key.", "You see a key."),
        (Dict(map=Text(20), at=Discrete(4)), {}, {"at": 2, "map": "SF\nFG"}, "map:\nSF\nFG\nat: 2"),
        (
            Dict(hand=Tuple((Discrete(3), Discrete(3)))),
            {"names": {"hand": ["left", "right"]}},
            {"hand": (1, 2)},
            "hand left: 1, hand right: 2",
        ),
    ],
)
def test_in_words(space, settings, observation, text):
    assert ObservationFormatter(space, **settings)(observation) == text


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (Box(0, 255, (84, 84, 3), np.uint8), "21,168 numbers"),
        (Box(0, 255, (128, 128), np.uint8), "16,384 numbers"),
        (Box(0, 1, (257,)), "257 numbers"),
        (Dict(view=Box(0, 1, (3, 3, 3))), "part 'view' is an array of 27 numbers"),
        (Sequence(Discrete(3)), "format_observation"),
        (Graph(Discrete(3), None), "format_observation"),
    ],
)
def test_what_has_no_words_is_refused_with_the_way_out(space, said):
    """Thousands of pixels as text would fill the prompt and teach nothing."""
    with pytest.raises(ValueError, match="data.wrappers") as caught:
        ObservationFormatter(space)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"names": ["x"]}, "needs 2 different names"),
        ({"names": ["x", "x"]}, "needs 2 different names"),
        ({"names": {"car": ["x", "v"]}}, "names has 'car'"),
        ({"units": {"x": "m"}}, "units has 'x'; the parts of the observation that have units are: '0', '1'"),
        ({"decimals": {"speed": 2}}, "decimals has 'speed'"),
    ],
)
def test_settings_of_what_is_not_there_are_refused(settings, said):
    """A misspelt name must not be ignored."""
    with pytest.raises(ValueError, match=said):
        ObservationFormatter(CAR, **settings)


def test_a_small_box_of_three_dimensions_is_put_in_a_row():
    """The refusal names Gymnasium's wrapper, and what it makes is read; of a picture nothing is promised."""
    small, picture = Box(0, 9, (2, 2, 2), dtype=np.int64), Box(0, 255, (64, 64, 3), dtype=np.uint8)
    with pytest.raises(ValueError, match=r"gymnasium\.wrappers\.FlattenObservation"):
        ObservationFormatter(small)
    assert ObservationFormatter(flatten_space(small))(flatten(small, np.ones((2, 2, 2)))).startswith(
        "0: 1, 1: 1"
    )
    with pytest.raises(ValueError, match="reads no pictures.*obs_type: ram"):
        ObservationFormatter(picture)
