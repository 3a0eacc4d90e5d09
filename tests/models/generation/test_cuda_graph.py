"""CUDA graphs: what can be one. Those that are recorded are compared with a CPU in `tests/learning/test_cuda.py`."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from helpers import tiny
from lgym.models.generation.cuda_graph import capture_graph, is_sharded


def test_sharded_weights_are_found():
    """One layer is enough; its class is set as FSDP2 sets it."""
    model = tiny.causal_lm()
    assert not is_sharded(model)
    model.model.layers[1].mlp.up_proj.__class__ = type("FSDPLinear", (FSDPModule, nn.Linear), {})
    assert is_sharded(model)


@pytest.fixture
def cuda(monkeypatch):
    """A stand-in for CUDA: its mode of synchronizing calls, and a graph that knows whether it was begun."""
    modes, graphs = ["default"], []

    class Nothing:
        def __init__(self, *given):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def wait_stream(self, other):
            pass

    class Graph(Nothing):
        def __init__(self, *given):
            graphs.append(self)

        def replay(self):
            pass

    stand_ins = {"Stream": Nothing, "current_stream": Nothing, "stream": Nothing, "CUDAGraph": Graph}
    for name, stand_in in {**stand_ins, "graph": Nothing}.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    return modes, graphs


@pytest.mark.parametrize("waits", [True, False])
def test_a_step_in_which_the_cpu_waits_is_no_graph(cuda, waits):
    """Catches generation that ends while it is recorded, as with bitsandbytes' 8-bit layers. What waits in its
    first run alone is recorded."""
    modes, graphs = cuda
    runs = []

    def step():
        runs.append(modes[-1])
        if waits and modes[-1] == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        return torch.ones(1)

    run = capture_graph(step)
    assert runs[:2] == ["default", "error"]
    assert modes[-1] == "default"
    assert (run is step) is waits
    assert len(graphs) == (not waits)
