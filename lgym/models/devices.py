"""The device that a model runs on, where the one asked for is not there."""

import warnings
from typing import Any

import torch

from lgym.types import ConfigError

GPUS = ("cuda", "mps")


def available_device(device: torch.device | str) -> torch.device:
    """A device, or the CPU, with a warning, where it is a GPU that is not there."""
    device = torch.device(device)
    if device.type not in GPUS or _is_available(device.type):
        return device
    warnings.warn(_message(f"device {device}"), stacklevel=1)  # of one place, and so shown once
    return torch.device("cpu")


def available_accelerator(accelerator: Any, devices: Any, num_nodes: int) -> dict[str, Any]:
    """The settings of a Trainer on the CPU, with a warning, where it asks for a GPU that is not there; else
    none.

    Raises:
        ConfigError: if it asks for several GPUs and there are none: one device would train on other batches.
    """
    kinds = GPUS if accelerator == "gpu" else (accelerator,)
    if accelerator not in ("gpu", *GPUS) or any(map(_is_available, kinds)):
        return {}
    wanted = _count(devices) * num_nodes
    if wanted > 1:
        raise ConfigError(
            f"trainer.accelerator {accelerator} with trainer.devices {devices} and trainer.num_nodes "
            f"{num_nodes} asks for {wanted} GPUs, and torch {torch.__version__} finds none on this machine. "
            f"Leave them out for one process on the CPU, or set trainer.accelerator to cpu for {wanted}."
        )
    warnings.warn(_message(f"trainer.accelerator {accelerator}"), stacklevel=2)
    return {"accelerator": "cpu", "devices": 1}


def multiplies_bf16(accelerator: Any) -> bool:
    """Check if a device has instructions for products in bf16.

    Without them they take several times as long as in fp32: seven times on a CPU with AVX2 alone, as most
    laptops have.

    Args:
        accelerator: as in `trainer.accelerator`; for one that is not there the CPU counts.
    """
    if accelerator not in ("auto", "cpu", "gpu", *GPUS):
        return True
    asked = {"auto": GPUS, "gpu": GPUS, "cpu": ()}.get(accelerator, (accelerator,))
    gpu = next(filter(_is_available, asked), None)
    if gpu == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if gpu == "mps":
        return torch.backends.mps.is_macos_or_newer(14, 0)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def _is_available(gpu: str) -> bool:
    return torch.cuda.is_available() if gpu == "cuda" else torch.backends.mps.is_available()


def _message(asked: str) -> str:
    return f"{asked} is not there (torch {torch.__version__} finds no such GPU): running on the CPU."


def _count(devices: Any) -> int:
    """The number of devices that `trainer.devices` names; 1 for `auto` and -1, which take those that there
    are."""
    if isinstance(devices, str) and "," in devices:
        devices = [index for index in devices.split(",") if index.strip()]
    if isinstance(devices, list | tuple):
        return len(devices)
    return max(1, int(devices)) if str(devices).lstrip("-").isdigit() else 1
