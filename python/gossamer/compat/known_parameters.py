"""The parameters that a trainer below the drop-in trains, has known, and watches."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

import torch

from .. import _core
from ..parameters import EngineParameters

__all__ = ["KnownParameters"]


class KnownParameters:
    """The parameters of one module, which an optimizer of the user's may have.

    Parameters
    ----------
    before
        Those of the trainer whose place this one takes; None: it is the first one.
    """

    def __init__(self, before: KnownParameters | None) -> None:
        self.seen: dict[int, torch.nn.Parameter] = {} if before is None else dict(before.seen)
        """By id, the parameters that the module has had."""
        self.replaced = {} if before is None else before.all_replaced()
        """By id, the names of parameters in whose places the module has got others."""
        self.is_first = before is None
        """Whether no other trainer has trained the module before."""
        self._watched_later: dict[int, torch.nn.Parameter] = {}

    def begin(self, module: torch.nn.Module, trained: EngineParameters) -> None:
        """Know the parameters of the module with which the training begins."""
        own = {id(p): p for p in module.parameters()}
        self._module, self._trained = module, trained
        self._index = {id(p): i for i, p in enumerate(trained.tensors)}
        self.seen |= own
        # An optimizer may still have the parameters of a layer that has been replaced.
        self._gone = self.seen.keys() - own.keys()

    def all_replaced(self) -> dict[int, str]:
        """Return also what has been replaced since the training began."""
        return self.replaced | {id(p): name for name, p in self._trained.replaced()}

    def lacks(self, parameters: Iterable[torch.nn.Parameter]) -> bool:
        """Return whether any is to be trained that was frozen, or not there, at the beginning."""
        return any(
            p.requires_grad and id(p) not in self._index and id(p) not in self._gone
            for p in parameters
        )

    def indices_of(self, optimizer: torch.optim.Optimizer) -> list[int]:
        """Return the places of an optimizer's parameters in the engine."""
        params = [p for group in optimizer.param_groups for p in group["params"]]
        return [self._index[id(p)] for p in params if id(p) in self._index]

    def watch_later(self, known: Container[int]) -> list[int]:
        """Watch parameters that are to be trained and that nobody knows; return their ids."""
        new = [p for p in self._module.parameters() if p.requires_grad and id(p) not in known]
        self._watched_later |= {id(p): p for p in new}
        return [id(p) for p in new]

    @property
    def ids_watched(self) -> Iterator[int]:
        """The ids of parameters whose optimizers tell the trainer of their steps."""
        yield from map(id, self._trained.tensors)
        yield from self.replaced
        yield from self._watched_later

    def check_others(self, params: list[torch.nn.Parameter]) -> None:
        """Refuse parameters that are not the module's."""
        inside = self.seen.keys() | {id(p) for p in self._module.parameters()}
        others = sum(id(p) not in inside for p in params if p.requires_grad)
        if others:
            raise _core.ConfigError(
                f"the optimizer has {others} parameters that are not of this model, allowed: an "
                "optimizer for parameters of one model"
            )

    def replaced_of(self, optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.nn.Parameter]]:
        """Return the module's parameters in the places of others, which the optimizer has."""
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        kept = {name for i, name in self.replaced.items() if i in own}
        return [(n, p) for n, p in self._module.named_parameters() if n in kept]
