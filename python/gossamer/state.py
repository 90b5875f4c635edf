"""All state of a training run: in the files of a folder, or as a dict of tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from . import _core
from .buffers import copy_into
from .devices import on_host
from .groups import WrappedOptimizer

__all__ = ["TrainingState"]

# The types that pieces of state have, as safetensors files spell them.
_TYPES = {
    "F32": torch.float32,
    "F64": torch.float64,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "U8": torch.uint8,
}
_SPELLED = {dtype: spelled for spelled, dtype in _TYPES.items()}

# The key of what Python alone knows: numbers of the optimizer, and of the schedule.
_PYTHON = "python"


class TrainingState:
    """Saves and loads what the engine, the module, the optimizer and its schedule hold.

    Parameters
    ----------
    engine
        The engine, which knows parameters and the states of optimizer and algorithm.
    module
        Its tensors that are not trained are saved, too.
    trained
        The parameters that the engine trains.
    optimizer, lr_scheduler
        What has numbers in Python.
    """

    def __init__(
        self,
        engine: _core.Engine,
        module: torch.nn.Module,
        trained: list[torch.nn.Parameter],
        optimizer: WrappedOptimizer,
        lr_scheduler: Any,
    ) -> None:
        self._engine = engine
        self._module = module
        self._trained = {id(p) for p in trained}
        self._optimizer = optimizer
        self._lr_scheduler = lr_scheduler

    def save(self, folder: str | os.PathLike[str], rank: int) -> None:
        """Write the files of a rank."""
        os.makedirs(folder, exist_ok=True)
        # Copies live as long as the engine reads them.
        others = self._others()
        self._engine.save(_tensors_in(folder, rank), [o.described() for o in others])
        torch.save(self._of_python(), _python_in(folder, rank))

    def load(self, folder: str | os.PathLike[str], rank: int) -> None:
        """Go on from the files of a rank."""
        others = self._others()
        self._engine.load(_tensors_in(folder, rank), [o.described() for o in others])
        _copy_back(others)
        if os.path.exists(_python_in(folder, rank)):
            self._load_python(
                torch.load(_python_in(folder, rank), map_location="cpu", weights_only=True)
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the state as tensors that nobody shares."""
        own = self._module.state_dict(keep_vars=True)
        others = self._others()
        state: dict[str, Any] = {}
        for name, kind, shape, values in self._engine.state([o.described() for o in others]):
            flat = (
                torch.frombuffer(values, dtype=_TYPES[kind])
                if len(values) > 0
                else torch.empty(0, dtype=_TYPES[kind])
            )
            like = own.get(name)
            if like is not None and like.dtype not in _SPELLED:
                flat = flat.view(like.dtype)  # The engine takes it for bytes.
            state[name] = flat.reshape(shape if like is None else like.shape)
        return state | {_PYTHON: self._of_python()}

    def from_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what to_dict() has returned."""
        own = self._module.state_dict(keep_vars=True)
        given = []
        for name, tensor in state.items():
            if name == _PYTHON:
                continue
            if not isinstance(tensor, torch.Tensor):
                raise _core.CheckpointError(
                    f"the state: {name} is a {type(tensor).__name__}, allowed: tensors"
                )
            dense = tensor.detach().cpu().contiguous()
            if name in own:
                dense = dense.flatten()
            if dense.dtype not in _SPELLED:
                dense = dense.view(torch.uint8)
            given.append((name, dense))
        others = self._others()
        self._engine.load_state(
            [(n, _SPELLED[t.dtype], list(t.shape), t.data_ptr()) for n, t in given],
            [o.described() for o in others],
        )
        _copy_back(others)
        if _PYTHON in state:
            self._load_python(state[_PYTHON])

    def _others(self) -> list[_OtherTensor]:
        found = [
            (n, p.detach())
            for n, p in self._module.named_parameters()
            if id(p) not in self._trained
        ]
        found += self._module.named_buffers()
        return [_OtherTensor(name, tensor, on_host(tensor).contiguous()) for name, tensor in found]

    def _of_python(self) -> dict[str, Any]:
        own = {"optimizer": self._optimizer.state_dict()}
        if self._lr_scheduler is not None:
            own["lr_scheduler"] = self._lr_scheduler.state_dict()
        return own

    def _load_python(self, own: Mapping[str, Any]) -> None:
        self._optimizer.load_state_dict(own["optimizer"])
        if self._lr_scheduler is not None and "lr_scheduler" in own:
            self._lr_scheduler.load_state_dict(own["lr_scheduler"])


class _OtherTensor(NamedTuple):
    """A tensor of the module that the engine does not train."""

    name: str
    tensor: torch.Tensor
    dense: torch.Tensor
    """The tensor's own memory, or a copy in row-major order on the host."""

    def described(self) -> tuple[str, str, int, int]:
        kind = str(self.dense.dtype).removeprefix("torch.")
        size = self.dense.numel() * self.dense.element_size()
        return self.name, kind, self.dense.data_ptr(), size


@torch.no_grad()
def _copy_back(others: list[_OtherTensor]) -> None:
    for other in others:
        if other.dense.data_ptr() != other.tensor.data_ptr():
            copy_into(other.tensor, other.dense)


def _tensors_in(folder: str | os.PathLike[str], rank: int) -> str:
    return os.path.join(folder, f"rank-{rank:05d}.safetensors")


def _python_in(folder: str | os.PathLike[str], rank: int) -> str:
    return os.path.join(folder, f"python-{rank:05d}.pt")
