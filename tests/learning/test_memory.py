"""Learning what the observation in hand does not tell: with each memory, and its control without."""

from __future__ import annotations

from helpers import memories  # noqa: F401  (registers the environments)
from helpers.runs import QUICK, lgym, scalars

LEARN = {"data__num_envs": 32, **QUICK}
LATER = {
    **LEARN,
    "data__env": "Later-v0",
    "data__agent": "helpers.memories.LaterAgent",
    "data__episodes_per_rollout": 96,
    "data__update_epochs": 8,
    "data__eval_episodes": 200,
    "trainer__max_epochs": 12,
    "trainer__check_val_every_n_epoch": 12,
}
NAMES = {
    **LEARN,
    "data__env": "Names-v0",
    "data__agent": "helpers.memories.NamesAgent",
    "data__episodes_per_rollout": 192,
    "data__update_epochs": 3,
    "model__init_args__entropy_coef": 0.1,  # else it says one word to all names that it does not know, and finds no other
    "trainer__max_epochs": 16,
    "trainer__limit_val_batches": 0,
}
EXACT = "{min_similarity: 1, return_weight: 1, half_life: null}"


def test_a_window_of_turns_tells_what_was_shown_before(tmp_path, model_folder):
    """Chance is 1/3. The agent's words are the default ones: what was shown, answered and paid."""
    lgym("fit", tmp_path, model_folder, **LATER, data__working_memory="{turns: 1}")
    metrics = scalars(tmp_path)
    assert list(metrics["rollout/return_mean"].values())[0] < 0.5
    assert list(metrics["val_sampled/return_mean"].values())[-1] > 0.8


def test_without_it_the_word_can_only_be_guessed(tmp_path, model_folder):
    """The control: 1/3 and 5 standard errors of sqrt(1/3 * 2/3 / 200) = 0.033 are 0.5."""
    lgym("fit", tmp_path, model_folder, **LATER)
    assert list(scalars(tmp_path)["val_sampled/return_mean"].values())[-1] < 0.5


def test_earlier_episodes_tell_what_belongs_to_a_name(tmp_path, model_folder):
    """Of every four rollouts with the same names, the last know most: with one of four tries in the first found right, 0.80
    of the names; in the first rollout with new ones it is chance again."""
    lgym("fit", tmp_path, model_folder, **NAMES, data__episodic_memory=EXACT)
    returns = list(scalars(tmp_path)["rollout/return_mean"].values())
    assert max(returns[-8:]) > 0.62
    assert min(returns[-8:]) < max(returns[-8:]) - 0.2, "the names changed, and nothing else told"


def test_without_them_it_can_only_be_guessed(tmp_path, model_folder):
    """The control: the highest of eight rollouts stays near 1/3, the standard error of one being 0.034, and what little is
    learned of 48 names in four rollouts."""
    lgym("fit", tmp_path, model_folder, **NAMES)
    assert max(list(scalars(tmp_path)["rollout/return_mean"].values())[-8:]) < 0.52
