"""CUDA graphs: the operations of a function, recorded once and then started as one."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def is_sharded(model: nn.Module) -> bool:
    """Check if the weights are cut up over processes, which agree on each forward pass
    (`lgym.models.sharding`): none can run one by itself."""
    from torch.distributed.fsdp import FSDPModule

    return any(isinstance(module, FSDPModule) for module in model.modules())


def capture_graph(function: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The function as a CUDA graph; the function itself where the CPU waits within it for what the GPU
    computes, as in bitsandbytes' 8-bit layers and some mixtures of experts. It is run twice before, and must
    do no harm when it is run again."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()  # what is made in a first run alone may wait
        waits = _waits(function)
    torch.cuda.current_stream().wait_stream(stream)
    if waits:
        return function
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        states = function()

    def replay() -> Tensor:
        graph.replay()
        return states

    return replay


def _waits(function: Callable[[], Tensor]) -> bool:
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        function()
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    return False
