"""Games by text as environments: what they return, and whose chance they draw from."""

from __future__ import annotations

import random

import numpy as np
import pytest

from helpers.runs import lgym, scalars
from helpers.word_games import Gem
from lgym.agents import GeneralAgent
from lgym.envs import TextEnv, make_env

GAMES = "helpers.word_games"
SAID = ["a b", "c!", "b"]


def episode(env, seed):
    """Everything that an episode with these answers shows."""
    shown = [env.reset(seed=seed)]
    for text in SAID:
        shown.append(env.step(text))
        if shown[-1][2] or shown[-1][3]:
            break
    return shown


def global_states():
    return random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2]


def test_a_game_of_ones_own():
    env = make_env("lgym/TextEnv-v0", {"class_path": f"{GAMES}.Guess", "init_args": {"letters": "x"}})
    assert env.reset(seed=3) == ("Guess one of x.", {})
    text, reward, terminated, truncated, info = env.step("not this")
    assert text.endswith("You said 'not this'.")
    assert (reward, terminated, truncated, info) == (0.0, False, False, {})
    assert env.step("X, I think")[1:4] == (1.0, True, False)


def test_gem():
    env = TextEnv(f"{GAMES}.Gem")
    assert env.reset(seed=7) == ("Say a number.", {"suffix": "Now."})
    assert env._game.seed == 7
    assert env.step("5") == ("Done.", 0.5, False, True, {"said": "5"})
    env.close()
    assert Gem.closed


def test_textarena():
    """The reward comes from `close`, after which the next episode can begin."""
    TextEnv(f"{GAMES}.make", {"env_id": "Wordle-v0"}).close()  # has nothing to return yet
    env = TextEnv(f"{GAMES}.make", {"env_id": "Wordle-v0"})
    for _ in range(2):
        assert env.reset(seed=0) == ("Wordle-v0: []", {})
        assert env.step("a") == ("Wordle-v0: ['a']", 0.0, False, False, {"turn": 1})
        assert env.step("b") == ("", 0.75, True, False, {"turn": 2, "role": "Player 0 of 2 turns"})


def test_equal_seeds_start_equal_episodes():
    """Whatever else has drawn from the generators of the process, and whatever was played before."""
    env, other = TextEnv(f"{GAMES}.Guess"), TextEnv(f"{GAMES}.Guess")
    episodes = [episode(env, seed) for seed in range(20)]
    assert len({repr(shown) for shown in episodes}) > 4
    random.seed(99)
    np.random.seed(99)
    assert [episode(other, seed) for seed in reversed(range(20))] == episodes[::-1]


def test_environments_do_not_draw_from_each_other():
    """Two that are played in turn are as each is alone."""
    alone, first, second = (TextEnv(f"{GAMES}.Guess", {"turns": 9}) for _ in range(3))
    alone.reset(seed=5)
    expected = [alone.step("?") for _ in range(8)]
    first.reset(seed=5)
    second.reset(seed=6)
    found = []
    for _ in range(8):
        found.append(first.step("?"))
        second.step("?")
    assert found == expected


def test_the_run_does_not_notice():
    """Neither the making of a game nor its play moves the generators of the process."""
    before = global_states()
    env = TextEnv(f"{GAMES}.Drawing")
    episode(env, 3)
    assert global_states() == before
    assert TextEnv(f"{GAMES}.Drawing")._game.letters == env._game.letters


def test_a_method_of_textarenas_name_makes_no_game_of_its():
    """Catches one letter of a game's text that is taken for the whole, and a step by a name it has not."""
    env = TextEnv(f"{GAMES}.Observed")
    assert env.reset(seed=0)[0] == "Guess."
    assert env.step("a")[0] == "You said a."


@pytest.mark.parametrize(
    ("class_path", "said"),
    [
        ("Guess", "class_path 'Guess' cannot be imported"),
        (f"{GAMES}.Nothing", "Nothing"),
        ("no_such_games.Guess", "No module named 'no_such_games'"),
        (f"{GAMES}.__name__", "makes no game"),
        ("builtins.dict", "has no reset and step"),
    ],
)
def test_what_is_no_game_is_refused(class_path, said):
    with pytest.raises(ValueError, match=said):
        TextEnv(class_path)


def test_what_is_no_text_is_refused():
    env = TextEnv(f"{GAMES}.Wordless")
    with pytest.raises(ValueError, match=r"Wordless.reset returned \[1, 2\] where its text should be"):
        env.reset()
    with pytest.raises(ValueError, match="Wordless.step returned 'hm'; return .text, reward, done"):
        env.step("hm")


def test_the_general_agent_says_what_it_is():
    agent = GeneralAgent()
    agent.bind(TextEnv(f"{GAMES}.Guess"))
    assert agent.system_prompt.startswith("You play a game by text.")
    assert agent.format_observation("Guess.") == "Guess."
    assert agent.parse(' I say: "æ"\n').action == 'I say: "æ"'


RUN = """
trainer: {accelerator: cpu, enable_progress_bar: false, max_epochs: 2}
model:
  class_path: lgym.modules.A2C
  init_args: {llm: {lora: {r: 4}}, policy: {max_new_tokens: 4}}
data:
  env: lgym/TextEnv-v0
  env_kwargs: {class_path: helpers.word_games.Guess, init_args: {letters: abcdefgh}}
  num_envs: 4
  turns_per_rollout: 32
  update_epochs: 1
  eval_episodes: 2
  history: full
"""


def test_a_word_game_from_yaml_alone(tmp_path, model_folder, capfd):
    """End to end, what the model says is played; and a run that was cut in mid-episode goes on as one that
    was not."""
    config = tmp_path / "run.yaml"
    config.write_text(RUN)
    lgym("fit", tmp_path / "whole", model_folder, config)
    lgym("fit", tmp_path / "cut", model_folder, config, trainer__max_epochs=1)
    random.seed(1)
    lgym("fit", tmp_path / "cut", model_folder, config, ckpt_path="last", data__subprocess_envs="true")
    assert "charset" not in capfd.readouterr().err
    whole, cut = scalars(tmp_path / "whole"), scalars(tmp_path / "cut")
    for name in ("rollout/return_mean", "rollout/turns", "loss/total"):
        assert list(whole[name].values())[-1] == list(cut[name].values())[-1]
    assert min(whole["rollout/parse_rate"].values()) > 0.5
