"""Action spaces as texts, and back."""

from __future__ import annotations

import string
import warnings

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text
from gymnasium.wrappers import DiscretizeAction

from helpers import spaces
from lgym.agents.actions import action_vocabulary, is_action
from lgym.envs import make_env

LISTED = [
    (Discrete(3, start=1), None, ("1", "2", "3"), [1, 2, 3]),
    (Discrete(2), ["left", "right"], ("left", "right"), [0, 1]),
    (MultiDiscrete([2, 2]), None, ("0, 0", "0, 1", "1, 0", "1, 1"), [[0, 0], [0, 1], [1, 0], [1, 1]]),
    (MultiDiscrete([2, 1], start=[5, 7]), None, ("5, 7", "6, 7"), [[5, 7], [6, 7]]),
    (MultiDiscrete([[2], [1]]), None, ("0, 0", "1, 0"), [[[0], [0]], [[1], [0]]]),
    (
        MultiDiscrete([2, 2]),
        [["left", "right"], ["slow", "fast"]],
        ("left, slow", "left, fast", "right, slow", "right, fast"),
        [[0, 0], [0, 1], [1, 0], [1, 1]],
    ),
    (MultiBinary(2), None, ("0, 0", "0, 1", "1, 0", "1, 1"), [[0, 0], [0, 1], [1, 0], [1, 1]]),
    (MultiBinary(1), [["off", "on"]], ("off", "on"), [[0], [1]]),
]


@pytest.mark.parametrize(("space", "names", "texts", "actions"), LISTED)
def test_every_action_has_a_text_and_every_text_its_action(space, names, texts, actions):
    vocabulary = action_vocabulary(spaces.env(action_space=space), names)
    assert vocabulary.texts() == texts
    assert vocabulary.count == len(texts)
    for text, action in zip(texts, actions, strict=True):
        read = vocabulary.parse(f" {text.upper()}\n")
        assert read.ok
        assert space.contains(read.action)
        assert np.array_equal(read.action, action)


@pytest.mark.parametrize("text", ["", "up", "left", "left, slow, slow", "slow, left", "left; slow"])
def test_what_names_no_action_is_a_failure(text):
    vocabulary = action_vocabulary(
        spaces.env(action_space=MultiDiscrete([2, 2])), [["left", "right"], ["slow", "fast"]]
    )
    assert not vocabulary.parse(text).ok
    assert repr(text) in vocabulary.parse(text).reason


PROSE = Text(5, charset=string.printable)


@pytest.mark.parametrize(
    ("space", "text", "action"),
    [
        (PROSE, " go\n", "go"),
        (PROSE, "I, é", "I, é"),  # the charset is no limit
        (PROSE, "gooooo", None),
        (PROSE, "  ", None),
        (Text(5), "go on", "go on"),  # Gymnasium's default has no space
        (Text(3, charset="0123456789"), " 42 ", "42"),
        (Text(3, charset="0123456789"), "4 2", None),  # one without letters is meant
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_text_is_taken_as_it_is(space, text, action):
    """Without the space around it, as long as it has the length that the environment takes."""
    vocabulary = action_vocabulary(spaces.env(action_space=space))
    assert vocabulary.texts() == ()
    assert vocabulary.parse(text).action == action
    assert vocabulary.parse(text).ok == (action is not None)
    assert is_action(space, "any, é")
    assert not is_action(space, 3)


def test_a_charset_that_hardly_any_text_fits_is_told():
    """Once bound, before anything is played; a charset for prose says nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vocabulary = action_vocabulary(spaces.env(action_space=PROSE))
    assert vocabulary.answer_format == "Answer with a short text of at most 5 characters."
    with pytest.warns(UserWarning, match="no space among its characters.*charset=string.printable"):
        action_vocabulary(spaces.env(action_space=Text(5)))
    with pytest.warns(UserWarning, match="characters '0123456789' alone.*pattern"):
        vocabulary = action_vocabulary(spaces.env(action_space=Text(5000, charset="0123456789")))
    assert vocabulary.answer_format == "Answer with a short text of the characters 0123456789."


def as_arrays(mask):
    """A mask as Gymnasium takes it: tuples, down to arrays of int8."""
    return tuple(map(as_arrays, mask)) if isinstance(mask, tuple) else np.array(mask, dtype=np.int8)


@pytest.mark.parametrize(
    ("space", "mask", "allowed"),
    [
        (Discrete(3), np.array([1, 0, 1], dtype=np.int8), [True, False, True]),
        (MultiDiscrete([2, 2]), ([1, 1], [0, 1]), [False, True, False, True]),
        (MultiDiscrete([[2], [2]]), (([1, 1],), ([0, 1],)), [False, True, False, True]),
        (MultiBinary(2), np.array([1, 2]), [False, False, True, True]),
        (MultiBinary(2), np.array([2, 0]), [True, False, True, False]),
    ],
)
def test_masks(space, mask, allowed):
    """As `space.sample(mask)` takes them: what it draws is allowed, and nothing else."""
    vocabulary = action_vocabulary(spaces.env(action_space=space))
    assert vocabulary.allowed(mask) == allowed
    drawn = [space.sample(as_arrays(mask)) for _ in range(50)]
    for text, may in zip(vocabulary.texts(), allowed, strict=True):
        assert any(np.array_equal(action, vocabulary.parse(text).action) for action in drawn) == may


def test_the_prompt_lists_the_answers():
    """And of many only the first ones and the last."""
    assert (
        action_vocabulary(spaces.env(action_space=Discrete(2)), ["up", "down"]).answer_format
        == "Answer with one of these: up, down."
    )
    assert action_vocabulary(spaces.env(action_space=Discrete(50))).answer_format.endswith("16, 17, …, 49.")
    several = action_vocabulary(spaces.env(action_space=MultiDiscrete([2, 1]))).answer_format
    assert several == "Answer with 2 choices, separated by commas: one of 0, 1; one of 0."


@pytest.mark.parametrize(
    ("space", "names", "said"),
    [
        (Discrete(2), ["up"], "needs 2 different names"),
        (Discrete(2), ["up", "Up "], "needs 2 different names"),
        (Discrete(2), [["up", "down"]], "needs one list of names"),
        (MultiDiscrete([2, 2]), ["up", "down"], "needs 2 lists of names"),
        (MultiDiscrete([2, 2]), [["up", "down"]], "needs 2 lists of names"),
        (MultiDiscrete([2]), [["up, up", "down"]], "comma"),
        (Text(5), ["up"], "leave `actions` out"),
    ],
)
def test_names_that_do_not_fit_are_refused(space, names, said):
    with pytest.raises(ValueError, match=said):
        action_vocabulary(spaces.env(action_space=space), names)


def test_numbers_are_refused_unless_discretized():
    """With the lines that do it."""
    with pytest.raises(ValueError, match=r"Pendulum-v1.*DiscretizeAction, init_args: \{bins: 3\}"):
        action_vocabulary(make_env("Pendulum-v1"))
    vocabulary = action_vocabulary(DiscretizeAction(make_env("Pendulum-v1"), bins=4))
    assert vocabulary.texts() == ("-1.50", "-0.50", "0.50", "1.50")  # the middles of four parts of -2 to 2
    assert vocabulary.parse("0.50").action == 2


def test_levels_that_round_alike_are_numbered():
    """Names must differ: 1,000 parts of -2 to 2 do not in two decimals."""
    assert action_vocabulary(DiscretizeAction(make_env("Pendulum-v1"), bins=1000)).texts()[-1] == "999"


def test_two_numbers_make_pairs_of_levels():
    """In the wrapper's own order, the last number fastest."""
    env = DiscretizeAction(spaces.env(action_space=Box(-1, 1, (2,))), bins=2)
    vocabulary = action_vocabulary(env)
    assert vocabulary.texts() == ("-0.50 -0.50", "-0.50 0.50", "0.50 -0.50", "0.50 0.50")
    assert env.action(vocabulary.parse("0.50 -0.50").action).tolist() == [0.5, -0.5]


def test_other_spaces_are_refused():
    with pytest.raises(ValueError, match="write an agent"):
        action_vocabulary(spaces.env(action_space=Dict(a=Discrete(2))))
