"""Sharded weights: each process holds a part of every frozen block, and all pass forward together.

What does not fit a device is the frozen model; adapters, value head and optimizer are a hundredth of it. So
the frozen weights of the blocks are cut up among the processes by FSDP2 ("PyTorch FSDP: Experiences on
Scaling Fully Sharded Data Parallel", Zhao et al. 2023, arXiv:2304.11277), which brings each block together
for as long as it is passed, and everything that is trained stays whole, as under DDP.

A pass therefore needs all processes, while each plays episodes of its own and passes another number of times.
`lgym.distributed.Lockstep` keeps them together.
"""

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from lgym import distributed
from lgym.models.llm import ValueHeadLLM
from lgym.models.prefix_sharing.frozen_blocks import blocks_of


def shard_frozen_weights(llm: ValueHeadLLM, device_type: str) -> set[nn.Parameter]:
    """Cut up the frozen weights of a model's blocks among all processes, in place.

    Args:
        llm: the whole model, on any device.
        device_type: the kind of device that it will run on.

    Returns:
        The weights that were cut up.
    """
    body, blocks = llm.causal_lm.base_model, blocks_of(llm.causal_lm)
    sharded = {p for block in blocks for p in block.parameters() if not p.requires_grad}
    mesh = init_device_mesh(device_type, (distributed.world_size(),))
    options: Any = {"mesh": mesh, "ignored_params": set(body.parameters()) - sharded}
    for block in blocks:
        fully_shard(block, reshard_after_forward=True, **options)
    fully_shard(body, **options)  # adds no weights; the blocks share its streams and buffers
    # a prefix by itself is another pass with gradient, which some minibatches take and others do not
    llm.use_cache = llm.use_cache and llm.layout == "tree"
    lockstep = distributed.Lockstep(lambda: _empty_pass(llm), device_type)

    def before_pass(*_: Any) -> None:
        if torch.is_grad_enabled():  # of these all processes take the same number
            lockstep.meet()
        else:
            lockstep.step()

    body.register_forward_pre_hook(before_pass, prepend=True)
    distributed.keep_in(lockstep)
    return {p for block in blocks for p in block.parameters() if p not in options["ignored_params"]}


def exclude_from_ddp(module: nn.Module, sharded: set[nn.Parameter]) -> None:
    """Have DDP leave the weights of a module alone that were cut up, when it is wrapped."""
    names = [name for name, parameter in module.named_parameters() if parameter in sharded]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, names)


@torch.no_grad()
def _empty_pass(llm: ValueHeadLLM) -> None:
    """A pass of one token, whose result nobody asks for."""
    llm.causal_lm.base_model(
        input_ids=torch.zeros((1, 1), dtype=torch.long, device=llm.device), use_cache=False
    )
