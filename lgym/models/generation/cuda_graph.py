"""CUDA graphs: the operations of a function, recorded once and then started as one."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
"""Types of rotary positions whose frequencies depend on the length of a sequence."""


def is_capturable(model: nn.Module) -> bool:
    """Check if a forward pass can be recorded: the CPU must not wait within it for what the GPU computes.

    It waits in bitsandbytes' 8-bit layers, which look for outliers; before sharded weights, where processes
    tell each other that they pass (`lgym.models.sharding`); and in rotary embeddings that ask for the length.
    """
    from torch.distributed.fsdp import FSDPModule

    return not any(
        type(module).__name__ == "Linear8bitLt"
        or isinstance(module, FSDPModule)
        or any(kind in str(getattr(module, "rope_type", "")) for kind in LENGTH_DEPENDENT_ROPE)
        for module in model.modules()
    )


def capture_graph(function: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The function as a CUDA graph. It is run once before, and must do no harm when it is run again."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        states = function()

    def replay() -> Tensor:
        graph.replay()
        return states

    return replay
