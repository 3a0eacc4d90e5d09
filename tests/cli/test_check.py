"""`lgym check`: a healthy run passes, and each thing that makes training useless ends it with status 1 and
its mend."""

from __future__ import annotations

import dataclasses
import json
import types

import gymnasium
import numpy as np
import pytest
import torch
from tokenizers import normalizers

from helpers import letters, tiny
from helpers.echo import EchoAgent, EchoEnv
from helpers.runs import lgym
from lgym.cli.check.findings import history_findings, parse_findings, returns_findings, seed_findings
from lgym.cli.check.trial import Trial, estimate, kv_cache_bytes
from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.data.random_play import RandomPlay, play_at_random, score, seed_fault
from lgym.terminal import format_tokens

LOOK = {"trainer__enable_progress_bar": None, "trainer__max_epochs": None, "random_episodes": 50}


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


@pytest.fixture
def checked(tmp_path, model_folder, capfd):
    """Runs `check` on Echo with options; its exit status and what it said."""

    def run(model=model_folder, config=None, **options):
        looked = LOOK if config is None else {"random_episodes": 50}
        status = 0
        try:
            lgym("check", tmp_path / "runs", model, config, **looked | options)
        except SystemExit as stop:
            status = stop.code
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        assert not (tmp_path / "runs").exists()
        return status, said.out + said.err

    return run


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
    """The interval of one episode is infinite, which JSON cannot say."""
    status, said = checked(
        random_episodes=1, data__episodes_per_rollout=1, data__num_envs=1, json=tmp_path / "check.json"
    )
    assert status == 0, said

    def refuse(constant):
        raise AssertionError(constant)

    record = json.loads((tmp_path / "check.json").read_text(), parse_constant=refuse)
    assert record["scores"]["played at random"]["ci95"] is None


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


def test_how_the_seed_is_tried():
    """An environment that carries something over is caught though each alone is deterministic."""

    class Counting(EchoEnv):
        resets = 0

        def reset(self, *, seed=None, options=None):
            self.resets += 1
            observation, info = super().reset(seed=seed)
            return (observation if self.resets < 4 else 0), info

    assert seed_fault(lambda: EchoEnv(turns=5), EchoAgent(), range(3)) is None
    assert "showed" in seed_fault(lambda: Counting(turns=5), EchoAgent(), range(3))
    LuckyEnv.unseeded = np.random.default_rng(1)  # other tests have drawn from it
    assert "reset with seed" in seed_fault(LuckyEnv, EchoAgent(), range(3))


class GuessEnv(gymnasium.Env):
    """Pays 1 for guessing a coin that falls afterwards."""

    observation_space, action_space = gymnasium.spaces.Discrete(1), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 0, float(action == int(self.np_random.integers(2))), True, False, {}


class SilentAgent(EchoAgent):
    """Offers nothing to choose from."""

    actions = ()


def test_random_play_does_not_know_the_dice():
    """Catches actions drawn from the number that the environment is reset with: they would guess every coin.
    400 coins, 200 expected, 10 their standard error."""
    play = play_at_random(GuessEnv, SilentAgent(), history=0, episodes=400, turns=0, seed=0)
    assert 160 <= sum(play.returns) <= 240


def test_random_play_counts_prompts_with_their_history():
    """Three words alone; with a turn before, 3 x 3 answers x 3 words and the 3 first turns; whole episodes
    more."""
    env = {"make_env": lambda: EchoEnv(turns=3), "agent": EchoAgent(), "episodes": 300, "turns": 0, "seed": 0}
    alone, one, whole = (play_at_random(**env, history=history) for history in (0, 1, "full"))
    assert alone.lengths == [3] * 300
    assert alone.distinct[-1] == 3
    assert one.distinct[-1] == 3 + 3 * 3 * 3
    assert 27 + 3 < whole.distinct[-1] <= 3 + 3 * 3 * 3 + 27 * 9
    assert (
        len(play_at_random(**env | {"episodes": 1, "turns": 100}, history=0).distinct) == 102
    )  # whole episodes


def test_distinct_prompts_of_a_longer_play():
    """From 4 to 8 in the second half doubles with the turns; from 8 to 8 stays."""
    assert RandomPlay(distinct=[1, 2, 3, 4, 5, 6, 7, 8]).distinct_after(32) == pytest.approx(32.0)
    assert RandomPlay(distinct=[5, 6, 7, 8, 8, 8, 8, 8]).distinct_after(32) == pytest.approx(8.0)
    assert RandomPlay(distinct=[1, 2, 3, 4]).distinct_after(2) == 2.0


def test_a_score_has_its_interval():
    """s = 1, 1.96 / sqrt(4) = 0.98; infinite for one episode."""
    of_four = score([0.0, 0.0, 2.0, 2.0])
    assert of_four["mean"] == 1.0
    assert of_four["ci95"] == pytest.approx(1.96 * (4 / 3) ** 0.5 / 2)
    assert score([3.0])["ci95"] == float("inf")
    assert score([]) is None


def test_imitation_takes_the_edge_off_a_low_parse_rate():
    """The turns to imitate teach the form."""
    assert [f.problem for f in parse_findings(0.0, ["no"], imitates=False)] == [True]
    assert [f.problem for f in parse_findings(0.0, ["no"], imitates=True)] == [False]
    assert not list(parse_findings(0.02, ["no"], imitates=False))


def test_findings_say_what_to_change():
    """Each names its mend."""
    (grouped,), (alone,) = seed_findings("it", 8, None), seed_findings("it", 1, None)
    assert "data.group_size: 1" in grouped.text
    assert grouped.problem
    assert not alone.problem
    assert not list(seed_findings(None, 8, None))
    assert not list(returns_findings([1.0, 1.0, 2.0]))
    assert not list(returns_findings([1.0]))


def test_a_window_that_does_not_fit_is_found_where_it_is(tokenizer):
    """Turn 0 is short and the others long: only windows behind them are too long."""
    builder = PromptBuilder(tokenizer, "s", 10_000)
    episode = [("o", "a")] + [("o" * 50, "a")] * 5
    lengths = [
        len(builder.encode(builder.render(episode[max(0, t - 2) : t], episode[t][0]))) for t in range(6)
    ]
    assert lengths[3] == lengths[5] > lengths[2]
    assert not list(history_findings(builder, [episode], 2, lengths[3]))
    (finding,) = history_findings(builder, [episode], 2, lengths[3] - 1)
    assert "would be shortened" in finding.text
    assert "50%" in finding.text  # turns 3, 4 and 5 of 6
    assert "Set data.history: 1" in finding.text
    (finding,) = history_findings(builder, [episode[:1], episode[:1], episode[:4]], "full", lengths[3])
    assert "17%" in finding.text  # 1 of 6


def test_a_prompt_that_is_too_long_by_itself_is_told_so(tokenizer):
    """In the first turn, where there is no history yet, and later, where even none would not help."""
    builder = PromptBuilder(tokenizer, "s", 10_000)
    short, long = ("o", "a"), ("o" * 50, "a")
    limit = len(builder.encode(builder.render([short], "o")))  # of a short prompt with another before it
    alone = len(builder.encode(builder.render([], "o" * 50)))
    assert alone > limit
    told = f"without any earlier turn has {alone} tokens, and the model's context leaves {limit}"
    for episode in ([long], [short, short, long]):
        for history in (1, "full"):
            (finding,) = history_findings(builder, [episode], history, limit)
            assert finding.problem
            assert told in finding.text


def test_an_estimate_is_proportional():
    """A policy that chooses pays for prompts, one that speaks for turns."""

    def data(episodes, turns):
        return types.SimpleNamespace(
            episodes_per_rollout=episodes,
            turns_per_rollout=turns,
            update_epochs=5,
            minibatch_size=4,
            num_envs=8,
        )

    rollout = types.SimpleNamespace(
        episode_lengths=torch.tensor([2.0, 2.0]), mask=torch.ones(2, 2), prompts=[0, 0], seconds=1.0
    )
    trial = Trial(rollout, [], [], 1.0, None, 3.0, 2, False, 100, 110, 7, 0.0)
    play = RandomPlay(distinct=list(range(1, 41)), seconds=4.0)
    asked = estimate(data(20, None), trial, play, generates_text=False)
    assert asked["turns"] == 40.0  # 20 episodes of 2
    assert asked["distinct_prompts"] == 40.0
    assert asked["play_seconds"] == 20.0 + 4.0  # half a second a prompt; 0.1 s a turn in the environments
    assert asked["learn_seconds"] == 5 * 40 * 3.0 / 2
    assert asked["memory_bytes"] == 100 + 10 * 4 / 2 + 7
    spoken = estimate(data(None, 80), dataclasses.replace(trial, by_response=True), play, generates_text=True)
    assert spoken["play_seconds"] == 80 / 4
    assert spoken["learn_seconds"] == 5 * 80 * 3.0 / 2
    written = dataclasses.replace(trial, kv_bytes=300.0)
    assert estimate(data(20, None), written, play, generates_text=True)["memory_bytes"] == 100 + 300 + 7


def test_keys_and_values_of_environments_that_play_together():
    """3 layers of 2 heads of 2 numbers of 4 bytes, keys and values: 96 bytes a token, copied once; 4 tokens of
    the prompt and 6 of the response in each environment."""
    config = types.SimpleNamespace(num_attention_heads=2, hidden_size=4, num_hidden_layers=3)
    causal_lm = types.SimpleNamespace(
        config=types.SimpleNamespace(get_text_config=lambda: config),
        get_input_embeddings=lambda: types.SimpleNamespace(weight=torch.zeros(1)),
    )
    policy = types.SimpleNamespace(
        generates_text=True,
        max_new_tokens=6,
        kv_cache_tokens=50,
        llm=types.SimpleNamespace(causal_lm=causal_lm),
    )
    module = types.SimpleNamespace(policy=policy)
    rollout = types.SimpleNamespace(prompts=[types.SimpleNamespace(token_ids=range(4))])
    alone, kept = (types.SimpleNamespace(history=history) for history in (0, "full"))
    assert kv_cache_bytes(alone, module, rollout, 4) == 2 * 96 * 4 * 10
    assert kv_cache_bytes(alone, module, rollout, 8) == 2 * 96 * 50  # no more are held
    assert kv_cache_bytes(kept, module, rollout, 8) == 2 * 96 * 8 * 10  # but of whole conversations all
    policy.generates_text = False
    assert kv_cache_bytes(alone, module, rollout, 8) == 0
    assert kv_cache_bytes(kept, module, rollout, 4) == 2 * 96 * 4 * 10


def test_tokens_show_their_borders_and_nothing_acts(monkeypatch):
    """Without colors by marks, with colors by shades; an escape is shown, not sent."""
    texts = ["a\x1b[31m", "b", "\n", "c"]
    chosen = [False, False, True, True]
    assert format_tokens(texts, chosen=chosen) == "a\\x1b[31m│b[⏎\n][c]"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    painted = format_tokens(texts, chosen=chosen)
    assert "\x1b[31m" not in painted
    assert painted.count("\x1b[48;5;") == 4
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in format_tokens(texts, chosen=chosen)
