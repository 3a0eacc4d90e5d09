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
from lgym.agents.observation_settings import ObservationSettings

CAR = Box(np.array([-1.2, -0.07]), np.array([0.6, 0.07]), dtype=np.float64)
ROBOT = Dict(robot=Box(-np.inf, np.inf, (2,)), door=Discrete(3))
PAIR = Tuple((Discrete(5), Box(0, 1, (1,))))


VIEW = Dict(view=Box(0, 255, (7, 7, 3), np.uint8), mission=Text(20), at=Box(0, 1, (2,)))
POLE = Box(np.array([-1, -1, -np.inf]), np.array([1, 1, np.inf]), dtype=np.float64)
PRICES = Box(np.zeros((2, 2)), np.array([[5e4, 1], [5e4, 1]]), dtype=np.float64)


def formatter(space, readers=None, **settings):
    return ObservationFormatter(space, ObservationSettings(**settings), readers)


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
        (Dict(a=Text(20), b=Discrete(3)), {}, {"a": "A key.", "b": 2}, "a: A key. b: 2"),
        (CAR, {"resolution": 0.2}, [-0.476, 0.0334], "0: -0.4, 1: 0.0"),
        (CAR, {"resolution": {"1": 0.05}}, [-0.476, 0.0334], "0: -0.48, 1: 0.05"),
        (CAR, {"resolution": 0.05, "decimals": 1}, [0.26, 0.03], "0: 0.2, 1: 0.1"),
        (CAR, {"resolution": 0.5}, [-0.2, 0.0334], "0: 0.0, 1: 0.0"),  # not -0.0
        (Box(-np.inf, np.inf, (2,)), {"decimals": -1}, [1237.5, -4], "0: 1240, 1: 0"),
        (Box(-np.inf, np.inf, (1,)), {"decimals": -2, "resolution": 5}, [1237.5], "1200"),
        (Box(-np.inf, np.inf, (1,)), {"resolution": 1}, [np.inf], "inf"),
        (Box(0, 99, (2,), np.int64), {"resolution": 20}, [29, 31], "0: 20, 1: 40"),
        (Box(0, 99, (1,), np.int64), {"resolution": 0.5}, [29], "29"),
        (Box(0, 99, (2, 2)), {"resolution": 20}, [[9, 11], [29, 31]], "0 20\n20 40"),
        (
            CAR,
            {"names": ["position", "velocity"], "words": True},
            [0.6, -0.01],
            "position: far right, velocity: near zero",
        ),
        (CAR, {"words": {"1": ["down", "up"]}}, [0.0, -0.01], "0: 0.00, 1: down"),
        (CAR, {"words": {"1": True}, "scale": {"1": 0.01}}, [0.0, 0.01], "0: 0.00, 1: very positive"),
        (
            Tuple((Box(-1, 1, (2,)), Discrete(3))),
            {"names": {"": ["robot", "door"], "robot": ["x", "y"]}, "words": True},
            ([0.6, -0.2], 2),
            "robot x: far right, robot y: down, door: 2",
        ),
        (
            POLE,
            {"names": ["cos pole", "sin pole", "speed"], "words": {"pole": True}},
            [0, -1, 2.5],
            "pole: -90 degrees, speed: 2.50",
        ),
        (
            POLE,
            {"names": ["cos pole", "sin pole", "speed"], "words": {"pole": ["up", "left", "down", "right"]}},
            [-0.9, 0.1, 2.5],
            "pole: down, speed: 2.50",
        ),
        (
            POLE,
            {"names": ["cos pole", "sin pole", "speed"]},
            [0, -1, 2],
            "cos pole: 0.00, sin pole: -1.00, speed: 2.00",
        ),
        (ROBOT, {"drop": ["robot"]}, {"robot": [1, 2], "door": 0}, "door: 0"),
        (ROBOT, {"drop": ["robot 1"]}, {"robot": [1, 2], "door": 0}, "robot 0: 1.00, door: 0"),
        (ROBOT, {"parts": ["door", "robot 1"]}, {"robot": [1, 2], "door": 0}, "door: 0, robot 1: 2.00"),
        (
            VIEW,
            {"parts": ["mission", "at"]},
            {"mission": "Go", "at": [0, 1]},
            "mission: Go, at 0: 0.00, at 1: 1.00",
        ),
        (VIEW, {"drop": ["view", "at"]}, {"mission": "Go"}, "mission: Go"),
        (PRICES, {}, [[100, 0.3], [200, 0.7]], "100 0.30\n200 0.70"),
        (
            POLE,
            {"names": ["cos p", "sin p", "v"], "words": {"p": True}, "parts": ["p"]},
            [1, 0, 2],
            "p: 0 degrees",
        ),
    ],
)
def test_as_text(space, settings, observation, text):
    assert formatter(space, **settings)(observation) == text


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
        formatter(space)
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
        formatter(CAR, **settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"resolution": 0}, "resolution has 0; it must be a number above 0"),
        ({"scale": {"0": float("nan")}}, "scale has nan"),
        ({"words": {"0": ["left"]}}, "words has .'left'. for '0'"),
        ({"words": {"0": "left"}}, "words has 'left' for '0'"),
        ({"words": {"speed": True}}, "words has 'speed'"),
        ({"scale": {"0": 1.0}}, "scale has '0'; the parts of the observation that have scale are: none"),
        ({"units": {"0": "m"}, "words": True}, "that have units are: none"),
        ({"resolution": {"0": 1.0}, "words": True}, "that have resolution are: none"),
        ({"parts": ["0"], "drop": ["1"]}, "parts and drop are both set"),
        ({"parts": ["x"]}, "parts has 'x'; the parts of the observation are: '0', '1'"),
        ({"drop": ["x"]}, "drop has 'x'"),
        ({"drop": ["0", "1"]}, "Nothing of the observation is shown"),
    ],
)
def test_settings_without_effect_are_refused(settings, said):
    """A setting that does nothing would be taken for one that works."""
    with pytest.raises(ValueError, match=said):
        formatter(CAR, **settings)


def test_words_need_bounds_or_a_scale():
    """Nothing else tells what is far."""
    names = ["cos pole", "sin pole", "speed"]
    with pytest.raises(ValueError, match=r"'speed' has no bounds within.*scale: \{speed: 1.0\}"):
        formatter(POLE, names=names, words=True)
    text = formatter(POLE, names=names, words=True, scale={"speed": 3.0})
    assert text([1, 0, -3.5]) == "pole: 0 degrees, speed: very negative"


def test_a_label_stands_for_what_lies_in_it_and_not_for_what_stands_beside_it():
    """Catches `drop: [arm]` that takes the arm's speed along where both are numbers of one vector."""
    names = ["arm", "arm speed", "leg"]
    assert formatter(Box(-1, 1, (3,)), names=names, drop=["arm"])([0, 1, 1]) == "arm speed: 1.00, leg: 1.00"
    assert formatter(Box(-1, 1, (3,)), names=names, parts=["arm"])([0, 1, 1]) == "arm: 0.00"
    robot = Dict(arm=Box(-1, 1, (2,)), leg=Box(-1, 1, (1,)))
    place = {"arm": [0, 1], "leg": [1]}
    assert formatter(robot, drop=["arm"])(place) == "leg: 1.00"
    assert formatter(robot, names={"arm": ["x", "speed"]}, parts=["arm speed"])(place) == "arm speed: 1.00"


def test_a_reader_has_the_text_of_a_part():
    """Without its label, also of a part that has no text of its own."""
    readers = {"view": lambda image: f"You see {image.sum()}."}
    text = formatter(VIEW, readers, parts=["view", "mission"])
    assert text({"view": np.ones((7, 7, 3)), "mission": "Go"}) == "You see 147.0. mission: Go"


def test_numbers_are_those_that_can_be_rounded():
    """Not the whole ones, those in words, and those that are not shown."""
    space = Dict(a=Box(-1, 1, (3,)), b=Discrete(3), c=Box(0, 9, (2,), np.int64))
    text = formatter(space, words={"a 1": True}, drop=["a 2"])
    assert text.numbers({"a": np.array([0.5, 0.25, 0.125]), "b": 2, "c": [1, 2]}) == {"a 0": 0.5}


def test_a_small_box_of_three_dimensions_is_put_in_a_row():
    """The refusal names Gymnasium's wrapper, and what it makes is read; of a picture nothing is promised."""
    small, picture = Box(0, 9, (2, 2, 2), dtype=np.int64), Box(0, 255, (64, 64, 3), dtype=np.uint8)
    with pytest.raises(ValueError, match=r"gymnasium\.wrappers\.FlattenObservation"):
        formatter(small)
    assert formatter(flatten_space(small))(flatten(small, np.ones((2, 2, 2)))).startswith("0: 1, 1: 1")
    with pytest.raises(ValueError, match="reads no pictures.*obs_type: ram"):
        formatter(picture)
