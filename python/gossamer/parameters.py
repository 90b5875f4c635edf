"""The parameters of a module as tensors in the engine's memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from . import _core
from .aliases import Aliases
from .checks import TYPES

__all__ = ["EngineParameters"]

_ALLOWED = (
    "allowed: to do so before wrapping; new values go into the parameters inside write_parameters()"
)


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
        self._module = module
        self._take([(name, p) for name, p in module.named_parameters() if p.requires_grad])

    def _take(self, trained: list[tuple[str, torch.nn.Parameter]]) -> None:
        self.names = [name for name, _ in trained]
        self.tensors = [p for _, p in trained]
        self.strides = [p.stride() for p in self.tensors]
        self.device = self.tensors[0].device
        self._types = [p.dtype for p in self.tensors]
        self._objects = [p._cdata for p in self.tensors]
        self._places = _places_of(self._module, self.tensors)
        self._settle()
        self._aliases = Aliases(self.names, self.tensors)
        self._masters: dict[int, torch.Tensor] = {}
        self._generation = 0
        self.note_versions()

    def _settle(self) -> None:
        """Take the memory of this moment for the parameters' home."""
        self._homes = [p.data for p in self.tensors]
        self._addresses = [home.data_ptr() for home in self._homes]

    def new(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Return the module's parameters that require gradients and are not trained."""
        own = {id(p) for p in self.tensors}
        named = self._module.named_parameters()
        return [(name, p) for name, p in named if p.requires_grad and id(p) not in own]

    def take_in(self, new: list[tuple[str, torch.nn.Parameter]]) -> None:
        """Go on with new parameters as well, and without those that the module has no more."""
        wanted = {id(p) for p in self.tensors} | {id(p) for _, p in new}
        self._take([(name, p) for name, p in self._module.named_parameters() if id(p) in wanted])

    @property
    def memory(self) -> list[torch.Tensor]:
        """The tensors that have this rank's values."""
        return [*self.tensors]

    def with_names(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Return pairs (name, parameter)."""
        return list(zip(self.names, self.tensors, strict=True))

    def described(self) -> list[tuple[str, list[int], list[int], str, int]]:
        """Return what the engine must know of them."""
        return [
            (name, list(p.shape), list(p.stride()), TYPES[p.dtype], p.data_ptr())
            for name, p in zip(self.names, self.tensors, strict=True)
        ]

    def warn_of_aliases(self) -> None:
        """Warn of tensors in the parameters' memory that cannot follow them into the engine's."""
        self._aliases.warn(self._homes)

    def rebind(self, engine: _core.Engine) -> bool:
        """Share the engine's memory, if it has moved; return whether it has."""
        if engine.generation == self._generation:
            return False
        self._generation = engine.generation
        homes = [from_dlpack(engine.parameter(i)) for i in range(len(self.tensors))]
        self._aliases.move(self._homes, homes)
        self._settle()
        self._masters = {
            i: from_dlpack(engine.master(i))
            for i, p in enumerate(self.tensors)
            if p.dtype == torch.bfloat16
        }
        return True

    @contextlib.contextmanager
    def as_masters(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Have bfloat16 parameters be their float32 master copies, for an optimizer's step.

        Gradients and states of the optimizer are float32 as well inside the scope, and states stay
        so. The gradients are those from before when it ends.
        """
        kept = [(i, self.tensors[i].grad) for i in self._masters]
        for i, grad in kept:
            p = self.tensors[i]
            p.grad = None
            p.data = self._masters[i]
            p.grad = None if grad is None else grad.float()
            state = optimizer.state.get(p, {})
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
                    state[name] = value.float()
        try:
            yield
        finally:
            for i, grad in kept:
                p = self.tensors[i]
                p.grad = None
                p.data = self._homes[i]
                p.grad = grad

    def gradient(self, i: int) -> torch.Tensor | None:
        """Return the gradient of parameter i as the engine takes it."""
        return self.tensors[i].grad

    def give_gradient(self, i: int, found: Any) -> None:
        """Have parameter i get the engine's gradient, of which this makes a copy; None: none."""
        p = self.tensors[i]
        if found is None:
            p.grad = None
        elif p.grad is None:
            p.grad = from_dlpack(found).to(p.dtype, copy=True)
        else:
            p.grad.copy_(from_dlpack(found))

    def note_versions(self) -> None:
        """Take the values of this moment for the engine's own."""
        self._versions = [p._version for p in self.tensors]

    def are_written(self) -> bool:
        """Return whether other code has written a parameter since note_versions()."""
        return any(
            p._version != version for p, version in zip(self.tensors, self._versions, strict=True)
        )

    def check_places(self) -> None:
        """Refuse a module whose parameters have been replaced, converted or moved since wrapping.

        Raises
        ------
        ConfigError
            With the name of the parameter. Nothing would train it.
        """
        for i, p in enumerate(self.tensors):
            self._check_kind(i, p)
            # share_memory_() takes along all tensors of that memory, also those of this class.
            if self._homes[i].data_ptr() != self._addresses[i]:
                raise _core.ConfigError(
                    f"parameter {self.names[i]} has moved to other memory since the module was "
                    "wrapped, as share_memory() does, and sending the module or its state_dict() "
                    "to another process, allowed: to send a copy, as copy.deepcopy(model.module)"
                )
            if p._cdata != self._objects[i]:
                raise _core.ConfigError(
                    f"parameter {self.names[i]} has been exchanged for another tensor since the "
                    f"module was wrapped, as swap_tensors() does, {_ALLOWED}"
                )
        for i, found in self._exchanged():
            if found is not None:
                self._check_kind(i, found)
            raise _core.ConfigError(
                f"parameter {self.names[i]} is no longer in its module, as after "
                f"load_state_dict(assign=True), parametrize, weight_norm or pruning, {_ALLOWED}"
            )

    def check_kinds(self) -> None:
        """Refuse parameters that are in their places, and of another type or device than before.

        Raises
        ------
        ConfigError
            With the name of the parameter.
        """
        for parameters, key, i in self._places:
            if parameters.get(key) is self.tensors[i]:
                self._check_kind(i, self.tensors[i])

    def replaced(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Return pairs (name, parameter) of those in whose places others are now."""
        left = [i for i, found in self._exchanged() if found is not None]
        return [(self.names[i], self.tensors[i]) for i in left]

    def _exchanged(self) -> Iterator[tuple[int, torch.nn.Parameter | None]]:
        """Return which parameters have left their places, and what is there now."""
        for parameters, key, i in self._places:
            found = parameters.get(key)
            # functional_call() puts other tensors there for the time of one call.
            is_lent = isinstance(found, torch.Tensor) and not isinstance(found, torch.nn.Parameter)
            if found is not self.tensors[i] and not is_lent:
                yield i, found

    def _check_kind(self, i: int, found: torch.Tensor) -> None:
        if found.dtype is not self._types[i]:
            raise _core.ConfigError(
                f"parameter {self.names[i]} has changed from {self._types[i]} to {found.dtype} "
                f"since the module was wrapped, {_ALLOWED}"
            )
        if found.device != self.device:
            raise _core.ConfigError(
                f"parameter {self.names[i]} has moved from {self.device} to {found.device} since "
                f"the module was wrapped, {_ALLOWED}"
            )

    def take_back(self) -> bool:
        """Move those that have been given other memory home; return whether there were any."""
        self.check_places()
        has_moved = False
        for p, home in zip(self.tensors, self._homes, strict=True):
            if not p.is_set_to(home):
                # A transposed view lies in the same memory.
                home.copy_(p.data.clone())
                p.data = home
                has_moved = True
        return has_moved


def _places_of(
    module: torch.nn.Module, trained: list[torch.nn.Parameter]
) -> list[tuple[dict[str, Any], str, int]]:
    """Return where a module has its parameters; one that it shares has several places."""
    index = {id(p): i for i, p in enumerate(trained)}
    return [
        (part._parameters, key, index[id(p)])
        for part in module.modules()
        for key, p in part._parameters.items()
        if p is not None and id(p) in index
    ]
