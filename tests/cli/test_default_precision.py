"""The precision of a run whose configuration names none."""

from __future__ import annotations

import pytest

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
