"""The precision of a run whose configuration names none."""

from __future__ import annotations

import pytest

from helpers.runs import lgym
from lgym.cli.command_line import default_precision
from lgym.models import LLMConfig


@pytest.mark.parametrize(
    ("llm", "expected"),
    [
        (LLMConfig(model="smollm2-135m-instruct"), "bf16-true"),
        (LLMConfig(model="smollm2-135m-instruct", lora=None), "bf16-mixed"),
        (LLMConfig(model="gpt2"), "32-true"),
        (LLMConfig(model="someone/else"), "32-true"),
    ],
)
def test_the_default_precision_is_the_models(monkeypatch, llm, expected):
    """A 135M model in fp32 runs at half the speed where bf16 is quick; whole weights in bf16 do not learn."""
    for quick in (True, False):
        monkeypatch.setattr("lgym.cli.command_line.multiplies_bf16", lambda accelerator, quick=quick: quick)
        assert default_precision(llm, "auto") == (expected if quick else "32-true")


@pytest.mark.parametrize("quick", [True, False])
def test_bf16_where_it_is_slow_is_warned_of(tmp_path, model_folder, monkeypatch, recwarn, quick):
    """A run's own precision stays with it, also on another machine."""
    monkeypatch.setattr("lgym.cli.command_line.multiplies_bf16", lambda accelerator: quick)
    few = {"data__episodes_per_rollout": 8, "data__eval_episodes": 4, "trainer__max_epochs": 1}
    lgym("fit", tmp_path, model_folder, trainer__precision="bf16-true", **few)
    warned = [str(w.message) for w in recwarn if "no instructions for bf16" in str(w.message)]
    assert len(warned) == (0 if quick else 1)
    assert quick or warned[0].startswith("trainer.precision is bf16-true")
