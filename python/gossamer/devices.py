"""Where a model is: on the processor, or on a GPU."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from . import _core
from .distributed import current_session

__all__ = ["check_device", "current_stream", "engine_gpu", "local_device", "on_host"]


def check_device(parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Refuse parameters that the engine cannot reach, and those on several devices.

    Raises
    ------
    ConfigError
        With the name of the parameter.
    """
    first: tuple[str, torch.device] | None = None
    for name, p in parameters:
        is_cuda = p.device.type == "cuda" and torch.version.hip is None
        if p.device.type != "cpu" and not is_cuda:
            raise _core.ConfigError(
                f"parameter {name} is on {p.device}, allowed: the processor, and GPUs of NVIDIA"
            )
        first = first or (name, p.device)
        if p.device != first[1]:
            raise _core.ConfigError(
                f"parameter {first[0]} is on {first[1]} and {name} on {p.device}, allowed: all "
                "on one device"
            )
    if first is not None and first[1].type == "cuda" and _core.num_gpus() == 0:
        raise _core.ConfigError(
            f"parameter {first[0]} is on {first[1]}, and gossamer was built without CUDA, or for "
            "a newer driver than this machine has, allowed: the processor, or a build with CUDA"
        )


def local_device() -> torch.device:
    """Return the GPU of this process, and make it PyTorch's current one; the processor if none.

    The processes of a host take its GPUs in turn. Call it after initialize_dist().
    """
    if not torch.cuda.is_available() or _core.num_gpus() == 0:
        return torch.device("cpu")
    device = torch.device("cuda", current_session().local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def engine_gpu(device: torch.device) -> _core.Gpu | None:
    """Describe a GPU to the engine, whose blocks come from PyTorch's allocator.

    Returns
    -------
    Gpu or None
        None for the processor.
    """
    if device.type == "cpu":
        return None

    def allocate(num_bytes: int) -> tuple[torch.Tensor, int]:
        memory = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        return memory, memory.data_ptr()

    return _core.Gpu(device.index, current_stream(device), allocate)


def current_stream(device: torch.device) -> int:
    """Return the cudaStream_t on which PyTorch computes in this thread."""
    return torch._C._cuda_getCurrentRawStream(device.index)


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or a copy in the host's memory, with the same strides if it is dense."""
    return tensor.detach().cpu()
