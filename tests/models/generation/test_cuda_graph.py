"""CUDA graphs: what can be one. Those that are recorded are compared with a CPU in `tests/learning/test_cuda.py`."""

from __future__ import annotations

import pytest
from torch import nn
from torch.distributed.fsdp import FSDPModule

from helpers import tiny
from lgym.models.generation.cuda_graph import is_capturable

ROPE = {"rope_theta": 1e4, "factor": 2.0}
LONG = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 1024}


@pytest.mark.parametrize("kind", ["default", "linear", "dynamic", "longrope"])
def test_rotary_positions_that_depend_on_the_length_are_not_captured(kind):
    """They compare the length with a limit, which a graph cannot wait for: generation on CUDA raised."""
    rope = {**ROPE, **(LONG if kind == "longrope" else {}), "rope_type": kind}
    assert is_capturable(tiny.causal_lm(rope_parameters=rope)) is (kind in ("default", "linear"))


@pytest.mark.parametrize(
    "layer_class",
    [type("Linear8bitLt", (nn.Linear,), {}), type("FSDPLinear", (FSDPModule, nn.Linear), {})],
    ids=["8bit", "sharded"],
)
def test_layers_that_wait_for_the_gpu_are_not_captured(layer_class):
    """One layer is enough; its class is set as FSDP2 sets it."""
    model = tiny.causal_lm()
    model.model.layers[1].mlp.up_proj.__class__ = layer_class
    assert not is_capturable(model)
