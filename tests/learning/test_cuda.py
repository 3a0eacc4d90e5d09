"""The same learning on a CUDA device, in the precisions that people use there."""

from __future__ import annotations

import pytest
import torch

from helpers.runs import checkpoint, lgym, scalars


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["32-true", "bf16-true", "bf16-mixed"])
def test_fits_and_resumes_on_cuda(tmp_path, model_folder, precision):
    """Masks, batches and random states must follow the model to its device, and back into a checkpoint."""
    assert torch.cuda.is_available(), "run `-m gpu` where there is a CUDA device"
    cuda = {"trainer__accelerator": "cuda", "trainer__precision": precision}
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=1, **cuda)
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=2, ckpt_path="last", **cuda)
    assert checkpoint(tmp_path)["epoch"] == 1
    assert all(value < 0.5 for value in scalars(tmp_path)["policy/logprob_diff_max"].values())
