"""`lgym check`: a healthy run passes, and each thing that makes training useless ends it with status 1 and
its mend."""

from __future__ import annotations

import json

import gymnasium
import numpy as np
import pytest
from tokenizers import normalizers

from helpers import letters, tiny
from helpers.echo import EchoAgent, EchoEnv
from lgym.cli import check
from lgym.cli.check import trial


class LuckyEnv(EchoEnv):
    """Draws from a generator that no seed reaches."""

    unseeded = np.random.default_rng(1)

    def _show(self) -> int:
        self._shown = int(self.unseeded.integers(3))
        return self._shown


class FlatEnv(EchoEnv):
    """Pays everything alike."""

    def step(self, action):
        return self._show(), 0.0, True, False, {}


class LongEnv(EchoEnv):
    """12 turns."""

    def __init__(self) -> None:
        super().__init__(turns=12)


class TwoLettersEnv(letters.LetterEnv):
    """Two turns."""

    def reset(self, *, seed=None, options=None):
        self._said = 0
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self._said += 1
        return 0, super().step(action)[1], self._said == 2, False, {}


class BlindAgent(EchoAgent):
    def format_observation(self, observation) -> str:
        return "something"


class ShoutingAgent(EchoAgent):
    """Two candidates that a tokenizer without capitals cannot tell apart."""

    def candidates(self, observation, info):
        return ["red", "green", "blue", "RED"]


class DeafAgent(letters.LetterAgent):
    """Reads nothing."""

    def extract_action(self, text):
        return letters.ParsedAction.failure("it is deaf")


for name, env in (
    ("Lucky-v0", LuckyEnv),
    ("Flat-v0", FlatEnv),
    ("Long-v0", LongEnv),
    ("TwoLetters-v0", TwoLettersEnv),
):
    if name not in gymnasium.registry:
        gymnasium.register(name, env)


@pytest.fixture
def speaking(tmp_path):
    """GRPO in free text."""
    path = tmp_path / "letters.yaml"
    path.write_text(letters.CONFIG)
    return path


@pytest.fixture
def grouped(tmp_path):
    """GRPO of choices; the group's size is still to be given."""
    path = tmp_path / "grouped.yaml"
    path.write_text(
        """
trainer: {accelerator: cpu}
model:
  class_path: lgym.modules.GRPO
  init_args: {llm: {lora: {r: 4}}, policy: {class_path: lgym.policies.CandidatePolicy}}
data: {env: Echo-v0, agent: helpers.echo.EchoAgent, num_envs: 8, episodes_per_rollout: 32}
"""
    )
    return path


def test_a_healthy_run_passes_and_shows_what_the_model_sees(checked, tmp_path):
    """Prompt, candidates, an episode, scores, tokens, costs; no folder, and the same as JSON."""
    status, said = checked(json=tmp_path / "check.json")
    assert status == 0
    assert "problem" not in said
    assert "warning" not in said
    assert "S│a│y│ │t│h│e│ │w│o│r│d│." in said  # a token a byte
    assert "[g][r][e][e][n]" in said
    assert "seed honored: yes" in said
    assert "optimal              +1.0000" in said
    record = json.loads((tmp_path / "check.json").read_text())
    assert record["findings"] == []
    assert record["seed_honored"] is True
    assert sum(record["candidates"].values()) == pytest.approx(1.0, abs=1e-5)
    assert record["scores"]["played at random"]["episodes"] == 50
    assert record["scores"]["optimal"] == 1.0
    assert record["tokens"]["distinct_prompts"] == 3  # a prompt a word
    assert record["rollout"]["turns"] == 32.0
    assert record["rollout"]["distinct_prompts"] == 3.0
    assert record["rollout"]["learn_seconds"] > 0


def test_what_is_written_is_json(checked, tmp_path):
    """The interval of one episode is infinite, which JSON cannot say. The folder need not be there."""
    status, said = checked(
        random_episodes=1,
        data__episodes_per_rollout=1,
        data__num_envs=1,
        json=tmp_path / "new" / "check.json",
    )
    assert status == 0, said

    def refuse(constant):
        raise AssertionError(constant)

    record = json.loads((tmp_path / "new" / "check.json").read_text(), parse_constant=refuse)
    assert record["scores"]["played at random"]["ci95"] is None


def test_a_slow_first_prompt_cuts_no_episodes(checked, monkeypatch):
    """It is the first that a process computes; beside others a prompt is quicker."""
    ask, shrink, limits = check.first_answers, trial._shrink, []

    def shrunk(*given):
        small = shrink(*given)
        limits.append(small.max_episode_steps)
        return small

    monkeypatch.setattr(check, "first_answers", lambda *given: ask(*given)._replace(seconds=60.0))
    monkeypatch.setattr(trial, "_shrink", shrunk)
    checked(data__env="Long-v0")
    assert limits == [None, None]


def test_a_speaking_run_shows_responses_and_how_many_can_be_read(checked, speaking, tmp_path):
    """Random bytes are letters now and then."""
    status, said = checked(config=speaking, json=tmp_path / "check.json")
    assert status == 0, said
    assert "responses that name an action" in said
    assert "no action: no letter" in said
    assert 0.01 < json.loads((tmp_path / "check.json").read_text())["parse_rate"] < 1


def test_responses_that_nobody_can_read_are_a_problem(checked, speaking):
    """Every reward would be the fallback's."""
    status, said = checked(config=speaking, data__agent="test_check.DeafAgent")
    assert status == 1
    assert "problem: 0.0% of" in said
    assert "extract_action" in said
    assert "CandidatePolicy" in said


def test_an_ignored_seed_is_a_problem_where_episodes_are_compared_or_resumed(checked, grouped):
    """And a warning elsewhere."""
    status, said = checked(data__env="Lucky-v0")
    assert status == 0
    assert "warning: The environment does not honor its reset seed" in said
    status, said = checked(
        data__env="Lucky-v0", data__episodes_per_rollout=None, data__turns_per_rollout=32
    )  # fmt: skip
    assert status == 1
    assert "data.episodes_per_rollout" in said
    status, said = checked(config=grouped, data__env="Lucky-v0", data__group_size=4)
    assert status == 1
    assert "Or set data.group_size: 1" in said
    assert "A prompt" not in said
    assert checked(config=grouped, data__group_size=4)[0] == 0


@pytest.mark.slow
def test_a_history_that_does_not_fit_is_a_problem(checked, tmp_path):
    """The model takes 256 tokens, one a character: 12 turns are more. What is told to fit, fits."""
    tiny.causal_lm(max_position_embeddings=256).save_pretrained(tmp_path / "short")
    tiny.tokenizer().save_pretrained(tmp_path / "short")
    small = {"model": tmp_path / "short", "data__env": "Long-v0"}
    status, said = checked(**small, data__history="full")
    assert status == 1
    assert "would be shortened. Set data.history: " in said
    assert "An episode" not in said  # no rollout is played with prompts like these
    fits = int(said.split("Set data.history: ")[1].split(",")[0])
    assert fits > 1
    assert checked(**small, data__history=fits, data__num_envs=2)[0] == 0


@pytest.mark.slow
def test_a_speakers_history_is_measured_with_its_own_responses(checked, speaking, tmp_path):
    """The letters that random play says are shorter."""
    tiny.causal_lm(max_position_embeddings=128).save_pretrained(tmp_path / "short")
    tiny.tokenizer().save_pretrained(tmp_path / "short")
    options = {
        "config": speaking,
        "model": tmp_path / "short",
        "data__env": "TwoLetters-v0",
        "data__history": "full",
    }
    assert checked(**options, model__init_args__policy__max_new_tokens=2)[0] == 0
    status, said = checked(**options, model__init_args__policy__max_new_tokens=40)
    assert status == 1
    assert "would be shortened. Set data.history: " in said


def test_candidates_that_tokenize_alike_are_refused(checked, tmp_path):
    """The policy could not choose between them."""
    blurred = tiny.tokenizer()
    blurred.backend_tokenizer.normalizer = normalizers.Lowercase()
    tiny.save(tmp_path / "model")
    blurred.save_pretrained(tmp_path / "model")
    status, said = checked(model=tmp_path / "model", data__agent="test_check.ShoutingAgent")
    assert status == 1
    assert "'red' and 'RED' are the same tokens" in said


def test_what_fit_refuses_check_refuses(checked, grouped):
    """Before it says that all is well."""
    status, said = checked(config=grouped)
    assert status == 1
    assert "set data.group_size to 2 or more" in said
    status, said = checked(random_episodes=0)
    assert status == 1
    assert "--random_episodes is 0" in said


def test_constant_words_and_equal_returns_are_warnings(checked):
    """They may be meant: a bandit has one state."""
    status, said = checked(data__agent="test_check.BlindAgent")
    assert status == 0
    assert "observations reads 'something'" in said
    status, said = checked(data__env="Flat-v0")
    assert status == 0
    assert "returned 0: there is nothing to tell good from bad by" in said


def test_truncation_without_a_discount_is_a_warning(checked, grouped):
    """Values bootstrapped at the cut have no fixed point then. With a discount, without a cut, or without a
    critic, nothing is wrong; who never heard of it would look for the drift for days."""
    counting = {
        "data__env": "Counting-v0",
        "data__agent": "helpers.echo.CountingAgent",
        "data__max_episode_steps": 5,
    }
    undiscounted = {"model__init_args__gamma": 1.0}
    status, said = checked(**counting, **undiscounted)
    assert status == 0
    assert "warning: gamma is 1 and 50 of 50 episodes, played at random, were truncated" in said
    assert "gamma: 0.99" in said
    by_turns = {"data__episodes_per_rollout": None, "data__turns_per_rollout": 32}
    assert "gamma is 1 and data.turns_per_rollout is 32" in checked(**by_turns, **undiscounted)[1]
    assert "gamma is" not in checked(**counting, model__init_args__gamma=0.99)[1]
    assert "gamma is" not in checked(**undiscounted)[1]  # every episode of Echo ends by itself
    assert "gamma is" not in checked(config=grouped, data__group_size=4, **counting)[1]  # GRPO has no critic
