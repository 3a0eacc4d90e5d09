"""`lgym play`: the agent's turns with its probabilities, a person's turns, and the environment's own
pictures."""

from __future__ import annotations

import io
import re

import gymnasium
import numpy as np
import pytest
import torch
from PIL import Image

from helpers import letters
from helpers.echo import EchoAgent, EchoEnv
from helpers.runs import lgym
from lgym.cli.play import parse_typed_action

WARM = {"model__init_args__policy__temperature": 20}  # the tiny model is sure of itself
SHOW = {"trainer__enable_progress_bar": None, "trainer__max_epochs": None, "delay": 0, **WARM}


class DrawnEnv(EchoEnv):
    """Draws itself: text with an escape that would clear the screen, or frames of 4 x 4."""

    metadata = {"render_modes": ["ansi", "rgb_array"]}

    def __init__(self, render_mode=None) -> None:
        super().__init__(turns=2)
        self.render_mode = render_mode

    def render(self):
        if self.render_mode == "ansi":
            return f"\x1b[2J\x1b[41mshown {self._shown}\x1b[0m\n"
        return np.full((4, 4, 3), 80 * self._shown + self._left, dtype=np.uint8)


class EndingEnv(EchoEnv):
    """Behind its end it shows what no agent has a word for."""

    observation_space = gymnasium.spaces.Discrete(4)

    def step(self, action):
        return 3, *super().step(action)[1:]


class RudeAgent(EchoAgent):
    """Its words hold what a terminal acts on."""

    def format_observation(self, observation) -> str:
        return f"\x1b[31m{super().format_observation(observation)}\x07"


if "Drawn-v0" not in gymnasium.registry:
    gymnasium.register("Drawn-v0", DrawnEnv)
    gymnasium.register("Ending-v0", EndingEnv)


@pytest.fixture
def played(tmp_path, model_folder, capfd):
    """Runs `play` on Echo with options; what it printed, or said where it failed."""

    def run(config=None, **options):
        shown = SHOW if config is None else {"delay": 0}
        try:
            lgym("play", tmp_path / "runs", model_folder, config, **shown | options)
        except SystemExit:
            return capfd.readouterr().err
        return capfd.readouterr().out

    return run


def test_a_turn_shows_what_might_have_been_done(played, tmp_path):
    """Three candidates, whose probabilities sum to one, a mark at the one taken, the value and the reward."""
    said = played(episodes=2, seed=5)
    assert "Say the word." in said
    assert "Episode 1 of 2 (seed 5)" in said
    assert "Episode 2 of 2 (seed 6)" in said
    first = said.split("Episode 2")[0]
    assert sum(float(p) for p in re.findall(r"([\d.]+)%", first)) == pytest.approx(100.0, abs=0.2)
    assert first.count("→") == 1
    assert re.search(r"reward [+]\d, value before it [+-]\d\.\d\d\d", first)
    assert "2 episodes, mean return" in said
    assert not (tmp_path / "runs").exists()


def test_greedy_play_takes_the_likeliest(played):
    """Sampling takes others too."""

    def taken(said: str) -> list[bool]:
        turns = re.findall(r"((?:^[→ ] \w+ +[\d.]+% ?█*\n){3})", said, flags=re.MULTILINE)
        odds = [
            [(float(p), mark) for mark, p in re.findall(r"([→ ]) \w+ +([\d.]+)%", turn)] for turn in turns
        ]
        return [max(own)[1] == "→" for own in odds]

    greedy, sampled = taken(played(episodes=20, greedy="true")), taken(played(episodes=20))
    assert greedy == [True] * 20
    assert len(sampled) == 20
    assert not all(sampled)


def test_a_trained_checkpoint_plays(played, tmp_path, model_folder):
    """Otherwise than the untrained model, from the newest run; nothing is added to its folder."""
    before = played(episodes=3)
    lgym(
        "fit",
        tmp_path / "runs",
        model_folder,
        trainer__max_epochs=2,
        model__init_args__critic__value_warmup=0,
        **WARM,
    )
    files = sorted((tmp_path / "runs").rglob("*"))
    played()  # what fit printed
    after = played(episodes=3, ckpt_path="last")
    assert re.findall(r"[\d.]+%", after) != re.findall(r"[\d.]+%", before)
    assert "no checkpoint under" in played(ckpt_path="last", trainer__default_root_dir=tmp_path / "elsewhere")
    assert sorted((tmp_path / "runs").rglob("*")) == files


def test_a_speaking_policy_shows_what_it_said(played, tmp_path):
    """And whether that named an action."""
    config = tmp_path / "letters.yaml"
    config.write_text(letters.CONFIG)
    said = played(config, episodes=20)
    assert said.count("→") == 20
    assert "the response names no action" in said


def test_words_do_not_act_on_the_terminal(played):
    """An escape is shown as text."""
    said = played(data__agent="test_play.RudeAgent")
    assert "\\x1b[31m" in said
    assert "\x1b" not in said
    assert "\x07" not in said


def test_a_person_plays_without_a_model(played, monkeypatch):
    """By name, number, or wrong first; whoever answers what is shown earns 1."""
    monkeypatch.setattr("lgym.modules.base.build_llm", None)
    monkeypatch.setattr("sys.stdin", io.StringIO("purple\n7\nRED\n1\n"))
    said = played(human="true", episodes=2, seed=0)
    assert "0: red  1: green  2: blue" in said
    assert said.count("Again:") == 2
    assert "'purple' is none of red, green, blue" in said
    assert "2 episodes, mean return" in said
    word = EchoEnv().reset(seed=0)[0]
    assert ("Return +1" in said.split("Episode 2")[0]) == (word == 0)


def test_what_is_behind_the_end_is_not_put_into_words(played, monkeypatch):
    """In training it never is, so that agents need no words for it."""
    monkeypatch.setattr("sys.stdin", io.StringIO("red\n"))
    assert "after 1 turn, terminated" in played(data__env="Ending-v0", human="true")


def test_the_end_of_the_input_ends_the_game(played, monkeypatch):
    """So does Ctrl-C, also while the agent plays."""
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert "Stopped." in played(human="true")

    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    assert "Stopped." in played(episodes=9)


def test_options_that_do_not_go_together_are_refused(played, tmp_path):
    """Rather than ignored."""
    torch.save({}, tmp_path / "last.ckpt")
    assert "--human loads no model: leave --greedy out" in played(human="true", greedy="true")
    assert "leave --ckpt_path out" in played(human="true", ckpt_path=tmp_path / "last.ckpt")
    assert "give --render too" in played(render_to="a.gif")
    assert "--episodes is 0" in played(episodes=0)
    assert "cannot be rendered as text" in played(render="true")


def test_the_environment_draws_itself_in_text(played):
    """What is more than color is shown, not sent; without a terminal colors go too."""
    said = played(data__env="Drawn-v0", render="true")
    assert said.count("\\x1b[2Jshown") == 3  # after the reset and both turns
    assert "\x1b" not in said


def test_the_environment_draws_itself_in_frames(played, tmp_path):
    """In a GIF, each as long as the delay."""
    gif = tmp_path / "shown" / "episode.gif"
    options = {
        "data__env": "Drawn-v0",
        "data__env_kwargs__render_mode": "rgb_array",
        "render": "true",
        "human": "true",
    }
    assert f"frames written to {gif}" in played(**options | {"human": "false", "delay": 0.3}, render_to=gif)
    with Image.open(gif) as picture:
        assert picture.n_frames == 3
        assert picture.info["duration"] == 300
        assert picture.size == (4, 4)
    played(**options | {"human": "false"})
    assert (tmp_path / "runs" / "play.gif").exists()
    assert "render_mode is 'svg'; --render shows ansi or rgb_array" in played(
        **options, data__eval_env_kwargs__render_mode="svg"
    )


def test_what_is_typed_must_be_possible_now():
    """A name of the agent's that is not among the candidates is no action."""
    agent = EchoAgent()
    assert parse_typed_action(agent, ("red", "blue"), "1").action == 2  # the second that is offered
    assert parse_typed_action(agent, ("red", "blue"), '{"action": "blue"}').action == 2
    assert "not among" in parse_typed_action(agent, ("red", "blue"), "green").reason
    assert parse_typed_action(letters.LetterAgent(), (), "b").action == 1
