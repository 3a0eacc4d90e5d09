"""The same learning on a CUDA device, in the precisions that people use there."""

from __future__ import annotations

import pytest
import torch

from helpers import tiny
from helpers.runs import assert_same_run, checkpoint, lgym, scalars
from lgym.models.generation.decoding import generate
from lgym.models.generation.sampling import SamplingParams
from models.generation.test_decoding import PROMPTS
from test_resume import BY_ERRORS, BY_GRAPH, COUNTING, FROZEN, REPLAY, SAC

pytestmark = pytest.mark.gpu

TEXT = {
    "model__init_args__policy": "lgym.policies.GenerationPolicy",
    "model__init_args__policy__init_args__max_new_tokens": 24,
    "data__agent": "helpers.echo.ForgivingEchoAgent",
}
THOUGHTS = {
    "model__init_args__policy": "lgym.policies.ThinkPolicy",
    "model__init_args__policy__init_args__max_reasoning_tokens": 24,
}
GRPO = {
    **TEXT,
    "model": "lgym.modules.GRPO",
    "data__group_size": 4,
    "model__init_args__llm__value_hidden_size": None,
}
CASES = {
    "choices": {},
    "unfinished episodes": COUNTING,
    "frozen blocks": FROZEN,
    "free text": TEXT,
    "thoughts": THOUGHTS,
    "GRPO of free text": GRPO,
    "DQN": REPLAY,
    "DQN by errors": BY_ERRORS,
    "DQN by graph": BY_GRAPH,
    "SAC": SAC,
    "a conversation": {"data__history": "full", "data__env_kwargs__turns": 3},
}
CUDA = {"trainer__accelerator": "cuda"}


@pytest.mark.parametrize("precision", ["32-true", "bf16-true", "bf16-mixed"])
@pytest.mark.parametrize("case", CASES)
def test_fits_and_resumes(tmp_path, model_folder, case, precision):
    """Masks, batches and random states must follow the model to its device, and back into a checkpoint."""
    options = {**CASES[case], **CUDA, "trainer__precision": precision}
    lgym("fit", tmp_path, model_folder, **{**options, "trainer__max_epochs": 1})
    lgym("fit", tmp_path, model_folder, **{**options, "trainer__max_epochs": 2}, ckpt_path="last")
    assert checkpoint(tmp_path)["epoch"] == 1
    assert all(value < 0.5 for value in scalars(tmp_path).get("policy/logprob_diff_max", {}).values())


@pytest.mark.parametrize("quantization", ["4bit", "8bit", "int8"])
def test_fits_and_resumes_quantized(tmp_path, model_folder, quantization):
    if quantization != "int8":
        pytest.importorskip("bitsandbytes")
    options = {**CUDA, "model__init_args__llm__quantization": quantization}
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=1, **options)
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=2, ckpt_path="last", **options)
    assert checkpoint(tmp_path)["epoch"] == 1


@pytest.mark.parametrize("case", CASES)
def test_stopped_and_resumed_equals_uninterrupted(tmp_path, model_folder, case):
    """Bit for bit, as on a CPU, by operations that always add up in the same order."""
    options = {**CASES[case], **CUDA, "trainer__deterministic": "true"}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    lgym("fit", whole, model_folder, trainer__max_epochs=4, **options)
    lgym("fit", parts, model_folder, trainer__max_epochs=2, **options)
    lgym("fit", parts, model_folder, trainer__max_epochs=4, ckpt_path="last", **options)
    assert_same_run(whole, parts)


@pytest.mark.parametrize("static_shapes", [False, True])
def test_text_is_that_of_a_cpu(static_shapes):
    """A captured graph replays the same arithmetic: the likeliest tokens and their log-probabilities."""
    written = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        made = generate(
            tiny.llm(torch.float64).to(device),
            PROMPTS,
            max_new_tokens=40,
            stop_ids=(258,),
            sampling_params=SamplingParams(),
            generator=None,
            static_shapes=static_shapes,
        )
        written.append([made.responses[row] for row in made.response_index])
    for expected, got in zip(*written, strict=True):
        assert got.token_ids == expected.token_ids
        assert got.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
