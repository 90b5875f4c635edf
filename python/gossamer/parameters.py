"""The parameters of a module as tensors in the engine's memory."""

from __future__ import annotations

import torch
from torch.utils.dlpack import from_dlpack

from . import _core
from .checks import TYPES

__all__ = ["EngineParameters"]


class EngineParameters:
    """The parameters that the engine trains, in declared order.

    From the first step on each shares the engine's memory, its home. The version counters of
    PyTorch tell whether anybody else has written them.

    Parameters
    ----------
    module
        Its parameters that require gradients.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in trained]
        self.tensors = [p for _, p in trained]
        self.strides = [p.stride() for p in self.tensors]
        self.device = self.tensors[0].device
        self._homes = [p.data for p in self.tensors]
        self._generation = 0
        self.note_versions()

    def with_names(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Return pairs (name, parameter)."""
        return list(zip(self.names, self.tensors, strict=True))

    def described(self) -> list[tuple[str, list[int], list[int], str, int]]:
        """Return what the engine must know of them."""
        return [
            (name, list(p.shape), list(p.stride()), TYPES[p.dtype], p.data_ptr())
            for name, p in zip(self.names, self.tensors, strict=True)
        ]

    def follow(self, engine: _core.Engine) -> bool:
        """Share the engine's memory, if it has moved; return whether it has."""
        if engine.generation == self._generation:
            return False
        self._generation = engine.generation
        for i, p in enumerate(self.tensors):
            p.data = from_dlpack(engine.parameter(i))
        self._homes = [p.data for p in self.tensors]
        return True

    def note_versions(self) -> None:
        """Take the values of this moment for the engine's own."""
        self._versions = [p._version for p in self.tensors]

    def are_written(self) -> bool:
        """Return whether somebody else has written any since note_versions()."""
        return any(
            p._version != version for p, version in zip(self.tensors, self._versions, strict=True)
        )

    def check_places(self) -> None:
        """Refuse a module that has been moved to another device since it was wrapped."""
        for name, p in zip(self.names, self.tensors, strict=True):
            if p.device != self.device:
                raise _core.ConfigError(
                    f"parameter {name} has moved from {self.device} to {p.device} since the module "
                    "was wrapped, allowed: to move the module before"
                )

    def take_back(self) -> bool:
        """Move those that have been given other memory home; return whether there were any."""
        self.check_places()
        has_moved = False
        for p, home in zip(self.tensors, self._homes, strict=True):
            if p.data_ptr() != home.data_ptr():
                home.copy_(p.data)
                p.data = home
                has_moved = True
        return has_moved
