"""Random streams: one for each purpose, episodes of its own for each stage, and no sampling in a greedy
evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from helpers import echo
from helpers.collectors import choices_of
from helpers.learners import RecordingLearner, attach
from helpers.prompts import make_prompt, response_batch
from helpers.scripted import FirstCandidatePolicy, text_response
from lgym.data import RolloutDataModule
from lgym.data.seeds import STAGES, first_reset_seed, stream
from lgym.envs.make import make_env

ROOT = Path(__file__).parents[2]
EPISODES = 1_000_000
"""Episodes of one stage in one process; more than any run has played."""


def module(batch=None, **settings):
    """A data module in its run: four environments, eight episodes a rollout and in an evaluation."""
    kwargs = {
        "env": "Echo-v0",
        "agent": echo.EchoAgent(),
        "num_envs": 4,
        "episodes_per_rollout": 8,
        "eval_episodes": 8,
    }
    data = RolloutDataModule(**{**kwargs, **settings})
    return attach(data, RecordingLearner(FirstCandidatePolicy(), batch))


def played(loader):
    """The rollout that an evaluation plays."""
    loader.dataset.outcome = lambda collector, rollout: rollout
    [flight] = loader.dataset
    return flight.batch


def reset_seeds(data):
    """By stage, those of the episodes that the loaders play."""
    rollouts = {
        "fit": data.train_dataloader().dataset.play_rollout(8),
        "validate": played(data.val_dataloader()[0]),
        "test": played(data.test_dataloader()[0]),
        "predict": played(data.predict_dataloader()),
    }
    return {stage: set(rollout.reset_seeds[rollout.mask].tolist()) for stage, rollout in rollouts.items()}


def test_every_stage_plays_episodes_of_its_own():
    """Catches validation that plays training's episodes, and test that plays validation's: each loader's
    reset seeds are eight in its own range."""
    for seed in (0, 1):
        seeds = reset_seeds(module(seed=seed))
        for stage, (start, width) in STAGES.items():
            assert len(seeds[stage]) == 8
            assert all(start <= own < start + width for own in seeds[stage]), stage


def test_an_evaluation_plays_the_same_episodes_whenever_it_is_asked():
    """Greedy and sampled, now and later, and whatever training has played between."""
    data = module()
    first = played(data.val_dataloader()[0])
    data.train_dataloader().dataset.play_rollout(8)
    for loader in (*data.val_dataloader(), data.val_dataloader()[1]):
        assert played(loader).reset_seeds.tolist() == first.reset_seeds.tolist()
    sampled = [choices_of(played(data.val_dataloader()[1])).tolist() for _ in range(2)]
    assert sampled[0] == sampled[1]


def test_ranges_are_apart_for_every_run_and_every_process():
    """1,000 run seeds, in one process and in eight, a million episodes each: catches ranges that are apart by
    chance alone, of which two of these runs had training meet an evaluation."""
    for seed in range(1000):
        for size in (1, 8):
            firsts = [first_reset_seed(seed, "fit", rank, size) for rank in range(size)]
            firsts += [first_reset_seed(seed, stage) for stage in ("validate", "test", "predict")]
            assert min(firsts) >= 0
            assert max(firsts) + EPISODES <= 2**31
            in_order = sorted(firsts)
            assert all(low + EPISODES <= high for low, high in zip(in_order, in_order[1:], strict=False)), (
                seed
            )


def test_runs_of_other_seeds_play_other_episodes():
    """In every stage: a run's seed is no decoration."""
    for stage in STAGES:
        assert len({first_reset_seed(seed, stage) for seed in range(1000)}) == 1000


def test_actions_are_drawn_from_no_environments_generator():
    """Gymnasium makes an environment's generator of its reset seed: that of the actions was made of the first
    one too, so the actions of a rollout were drawn from the very numbers that its first environment drew its
    cards from."""
    own = {seed for seeds in reset_seeds(module()).values() for seed in seeds} | {0}
    dataset = module().train_dataloader().dataset  # nothing has been played from it
    drawn = {float(np.random.default_rng(seed).random()) for seed in own}
    for rng in (
        dataset.play.rngs["actions"],
        dataset.play.rngs["order"],
        np.random.default_rng(stream(0, "validate", "actions")),
    ):
        assert float(rng.random()) not in drawn


def test_every_purpose_stage_and_process_has_a_stream_of_its_own():
    """Catches a spawn key that leaves one of them out."""
    draws = {
        float(np.random.default_rng(stream(seed, stage, purpose, rank)).random())
        for seed in (0, 1)
        for stage in STAGES
        for purpose in ("resets", "actions", "order")
        for rank in range(3)
    }
    assert len(draws) == 2 * 4 * 3 * 3


def test_greedy_draws_nothing():
    """The likeliest word, which the policy says with probability 0.75, in all of 50 episodes; sampled, not in
    all: a greedy evaluation that is given a generator samples, and reports another policy's return."""
    greedy, sampled = (played(loader) for loader in module(eval_episodes=50).val_dataloader())
    assert not choices_of(greedy)[greedy.mask].any()
    assert 2 <= int((choices_of(sampled)[sampled.mask] > 0).sum()) <= 30  # 12.5 expected, +- 3 x 3.1 and some


def test_every_pass_is_shuffled_anew():
    """20 prompts one at a time: none of three passes takes them in the order in which they were met, nor two
    alike."""
    prompts = [make_prompt(str(number)) for number in range(20)]
    batch = response_batch(prompts, list(range(20)), [text_response("a")] * 20)
    data = module(batch, update_epochs=3, minibatch_size=1)
    order = [flight.batch.prompts[0].observation_text for flight in data.train_dataloader().dataset]
    in_order = [str(number) for number in range(20)]
    passes = [order[start : start + 20] for start in (0, 20, 40)]
    assert all(sorted(one, key=int) == in_order for one in passes)
    assert all(one != in_order for one in passes)
    assert passes[0] != passes[1] != passes[2]


def test_sampling_and_shuffling_go_on_apart():
    """Both generators are in the checkpoint, each under its purpose: catches one that starts anew."""
    old = module()
    dataset = old.train_dataloader().dataset
    dataset.play.rngs["actions"].random(3)
    dataset.play.rngs["order"].random(5)
    state = json.loads(json.dumps(old.state_dict()))
    new = module()
    new.load_state_dict(state)
    restored = new.train_dataloader().dataset
    assert restored.play.rngs["actions"].random() == dataset.play.rngs["actions"].random()
    assert restored.play.rngs["order"].random() == dataset.play.rngs["order"].random()


@pytest.mark.parametrize(
    ("settings", "signs"),
    [
        ({}, [1.0, 1.0, 1.0]),
        ({"eval_env_kwargs": {"sign": -1.0}}, [1.0, -1.0, -1.0]),
        ({"eval_env_kwargs": {"sign": -1.0}, "test_env_kwargs": {"sign": -2.0}}, [1.0, -1.0, -2.0]),
        ({"test_env_kwargs": {"sign": -2.0}}, [1.0, 1.0, -2.0]),
    ],
)
def test_test_may_play_another_environment_than_validation(settings, signs):
    """`test_env_kwargs` override validation's, and a setting that they leave out stays as validation has it;
    `predict` goes with validation."""
    data = module(env_kwargs={"turns": 2}, **settings)
    stages = ("fit", "validate", "test")
    assert [data.make_env(stage).unwrapped.sign for stage in stages] == signs
    assert [data.make_env(stage).unwrapped.turns for stage in stages] == [2, 2, 2]
    assert data.make_env("predict").unwrapped.sign == signs[1]
    assert data.agents["predict"] is data.agents["validate"]
    assert (data.agents["test"] is data.agents["validate"]) == ("test_env_kwargs" not in settings)


def test_textworlds_test_games_are_not_validations():
    """A hundred seeds in a row are all games of a range: as long as both had the same range, `test` told
    again what validation had told, by which the weights were chosen."""
    pytest.importorskip("textworld")
    data = yaml.safe_load((ROOT / "configs" / "textworld.yaml").read_text(encoding="utf-8"))["data"]
    own, evaluated = data["env_kwargs"], data["env_kwargs"] | data["eval_env_kwargs"]
    numbers = []
    for kwargs in (own, evaluated, evaluated | data["test_env_kwargs"]):
        env = make_env(data["env"], kwargs)
        numbers.append({int(path.stem.split("seed")[1]) for path in env.unwrapped._games.paths})
        env.close()
    assert [len(games) for games in numbers] == [300, 100, 100]
    assert len(set.union(*numbers)) == 300 + 100 + 100
