"""Which modules can be trained, and what must be equal on all ranks."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from . import _core
from .buffers import copy_into
from .devices import check_device, on_host
from .distributed import Session
from .own_topologies import World, engine_text, world_of

__all__ = [
    "TYPES",
    "average_tensors",
    "check_module",
    "check_parameters",
    "compare_modules",
    "describe_module",
    "describe_options",
    "is_sharded",
    "share_module",
    "share_object",
    "share_options",
    "share_tensors",
]

TYPES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}


def share_module(session: Session, module: torch.nn.Module) -> None:
    """Compare the ranks' modules, and give all ranks the values of rank 0, as compare_modules()."""
    compare_modules(session, module)
    share_tensors(session, [*module.parameters(), *module.buffers()])


def compare_modules(session: Session, module: torch.nn.Module) -> None:
    """Compare the ranks' modules. Collective.

    Raises
    ------
    ConfigError
        For modules that differ, and for parameters that cannot be trained.
    """
    session.agree("their models", describe_module(module))
    _warn_of_sync_batch_norm(session, module)


def describe_module(module: torch.nn.Module) -> str:
    """Return the lines that must be equal on all ranks.

    Raises
    ------
    ConfigError
        For parameters that cannot be trained.
    """
    if not any(p.requires_grad for p in module.parameters()):
        raise _core.ConfigError(
            "the model has no parameter that requires a gradient: nothing can be trained"
        )
    check_device((name, p) for name, p in module.named_parameters() if p.requires_grad)
    trained = [name for name, p in module.named_parameters() if p.requires_grad]
    others = [name for name, p in module.named_parameters() if not p.requires_grad]
    others += [name for name, _ in module.named_buffers()]
    # state_dict() has a piece of its own.
    _core.check_tensor_names(trained, [*others, "python"])
    lines = []
    for name, p in module.named_parameters():
        _check_parameter(name, p)
        lines.append(f"{name} {list(p.shape)} {list(p.stride())} {p.dtype} {p.requires_grad}")
    for name, b in module.named_buffers():
        lines.append(f"buffer {name} {list(b.shape)} {b.dtype}")
    return "\n".join(lines)


def check_parameters(named: Iterable[tuple[str, torch.nn.Parameter]], device: torch.device) -> None:
    """Refuse parameters that cannot be trained beside those of a device."""
    for name, p in named:
        _check_parameter(name, p)
        if p.device != device:
            raise _core.ConfigError(
                f"parameter {name} is on {p.device}, allowed: {device}, where the others are"
            )


def share_tensors(session: Session, tensors: Iterable[torch.Tensor], root: int = 0) -> None:
    """Give all ranks the values of `root`, of all tensors together. Collective."""
    with torch.no_grad():
        # Their host memory and, where that is a copy, the tensors that take the values.
        memory: list[torch.Tensor] = []
        copied: list[tuple[list[torch.Tensor], torch.Tensor]] = []
        on_gpus: dict[torch.device, list[torch.Tensor]] = {}
        for tensor in tensors:
            if tensor.device.type != "cpu":
                on_gpus.setdefault(tensor.device, []).append(tensor)
                continue
            dense = tensor if _is_dense(tensor) else tensor.contiguous()
            memory.append(dense)
            if dense is not tensor:
                copied.append(([tensor], dense))
        for on_gpu in on_gpus.values():
            memory.append(_in_one(on_gpu))
            copied.append((on_gpu, memory[-1]))
        session.broadcast([(m.data_ptr(), m.numel() * m.element_size()) for m in memory], root)
        for targets, values in copied:
            _copy_from_one(targets, values)


def share_object(session: Session, make: Callable[[], Any], root: int = 0) -> Any:
    """Return what `make` makes on `root`, with tensors on the processor. Collective."""
    file = io.BytesIO()
    if session.rank == root:
        torch.save(make(), file)
    size = int(session.all_gather(str(file.tell()))[root])
    memory = torch.zeros(size, dtype=torch.uint8)
    if session.rank == root:
        memory = torch.frombuffer(bytearray(file.getbuffer()), dtype=torch.uint8)
    share_tensors(session, [memory], root)
    return torch.load(io.BytesIO(memory.numpy().tobytes()), map_location="cpu", weights_only=True)


def _in_one(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return the bytes of tensors of a GPU on the host: every copy waits for the GPU."""
    return on_host(torch.cat([t.contiguous().reshape(-1).view(torch.uint8) for t in tensors]))


def _copy_from_one(tensors: list[torch.Tensor], values: torch.Tensor) -> None:
    """Copy values of the host, that lie one behind the other, into tensors."""
    shared = values.to(tensors[0].device).reshape(-1).view(torch.uint8)
    pieces = torch.split(shared, [tensor.numel() * tensor.element_size() for tensor in tensors])
    for tensor, piece in zip(tensors, pieces, strict=True):
        # A type of more bytes wants an address that is a multiple of them.
        copy_into(tensor, piece.clone().view(tensor.dtype).view(tensor.shape))


def average_tensors(session: Session, tensors: Iterable[torch.Tensor]) -> None:
    """Make tensors of floating point their mean over all ranks, rounded once. Collective."""
    with torch.no_grad():
        pairs = [(tensor, _for_sum(tensor)) for tensor in tensors]
        session.average([(d.data_ptr(), d.numel(), TYPES[d.dtype]) for _, d in pairs])
        for tensor, dense in pairs:
            if dense.data_ptr() != tensor.data_ptr():
                tensor.copy_(dense)


def _for_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor on the host, as float32 where its own type has fewer digits."""
    dense = on_host(tensor).contiguous()
    return dense if dense.dtype == torch.float64 else dense.float()


def share_options(session: Session, options: Mapping[str, Any]) -> str:
    """Write options as the engine reads them, and compare them between the ranks.

    Raises
    ------
    ConfigError
        For options that differ. Only the number of threads may, as hosts do.
    """
    text, lines = describe_options(options, world_of(session))
    session.agree("their options", lines)
    return text


def describe_options(options: Mapping[str, Any], world: World) -> tuple[str, str]:
    """Return options as the engine reads them, and the lines that must be equal on all ranks."""
    text = engine_text(options, world)
    compared = {key: value for key, value in json.loads(text).items() if key != "threads"}
    lines = [f"{key}: {json.dumps(value)}" for key, value in compared.items()]
    return text, "\n".join(lines)


def is_sharded(part: torch.nn.Module) -> bool:
    """Return whether fully_shard() has been called for this part of a module."""
    # It makes a class of its own, as FSDPLinear.
    return any(base.__name__ == "FSDPModule" for base in type(part).__mro__)


def check_module(module: torch.nn.Module) -> None:
    """Refuse a module with a part that synchronizes gradients itself, or is wrapped already."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if torch.nn.parameter.is_lazy(tensor):
            raise _core.ConfigError(
                f"{name} has no values yet, as in lazy modules, allowed: a module that a forward "
                "pass has completed"
            )
    for name, buffer in module.named_buffers():
        if buffer.is_sparse or buffer.is_meta:
            raise _core.ConfigError(
                f"buffer {name} is {'sparse' if buffer.is_sparse else 'on the meta device'}, "
                "allowed: dense tensors with values"
            )
    for name, part in module.named_modules():
        kind = type(part).__name__
        place = f"the module's part {name}" if name else "the module"
        if kind == "DecentralizedDataParallel":
            raise _core.ConfigError(f"{place} is wrapped already, allowed: the plain module")
        if kind in ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel"):
            raise _core.ConfigError(
                f"{place} is in {kind}, which synchronizes gradients itself, allowed: the plain "
                "module, model.module"
            )
        if is_sharded(part):
            raise _core.ConfigError(
                f"{place} is sharded by fully_shard(), allowed: gossamer.ShardedGossip, or a "
                "module whose parameters lie whole on every rank"
            )


def _warn_of_sync_batch_norm(session: Session, module: torch.nn.Module) -> None:
    has_peers = torch.distributed.is_available() and torch.distributed.is_initialized()
    kinds = (torch.nn.SyncBatchNorm,)
    if session.world_size == 1 or has_peers:
        return
    if any(isinstance(part, kinds) for part in module.modules()):
        warnings.warn(
            "the module has SyncBatchNorm, which looks for other ranks in torch.distributed, and "
            "there is no process group: it normalizes with each rank's own batch. Call "
            "gossamer.integrations.meeting.begin_process_group() before the first step",
            stacklevel=5,
        )


def _check_parameter(name: str, p: torch.nn.Parameter) -> None:
    if not p.requires_grad:
        return
    if p.dtype not in TYPES:
        raise _core.ConfigError(
            f"parameter {name} is {p.dtype}, allowed: float32, float64, bfloat16"
        )
    if not _is_dense(p):
        raise _core.ConfigError(
            f"parameter {name} has gaps or an unusual order in its memory, allowed: contiguous, "
            "channels_last, and transposed matrices"
        )


def _is_dense(tensor: torch.Tensor) -> bool:
    return (
        tensor.is_contiguous()
        or tensor.is_contiguous(memory_format=torch.channels_last)
        or (tensor.dim() == 2 and tensor.t().is_contiguous())
    )
