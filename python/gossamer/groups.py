"""The wrapped optimizer: its numbers for the engine, or its work in Python."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from . import _core
from .optimizers import Rule, rules_of

__all__ = ["WrappedOptimizer", "replace_step"]


class WrappedOptimizer:
    """An optimizer whose work the engine does, or that runs between mixing and sending.

    Parameters
    ----------
    optimizer
        The optimizer; its step() and zero_grad() do nothing from here on.
    parameters
        The parameters that require gradients, in the engine's order.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter]
    ) -> None:
        self.optimizer = optimizer
        self._parameters = parameters
        self._groups = self._indices()
        self._told: list[Rule] | None = None
        rules = rules_of(optimizer)
        self.rule = rules[0].text if rules else None
        """The engine's rule; None: the optimizer runs in Python."""
        self._own_step = optimizer.step
        self.before_update: Callable[[list[torch.nn.Parameter]], None] = _nothing
        """Called with the parameters of a bucket, which are mixed, before an update in Python."""
        self._replace_habits()

    def tell(self, engine: _core.Engine) -> None:
        """Tell the engine the numbers of the groups that have changed since the last step."""
        engine.tell_lr(float(self.optimizer.param_groups[0]["lr"]))
        if self.rule is None:
            return
        rules = rules_of(self.optimizer)
        if rules is None:
            raise _core.ConfigError(
                "the optimizer's groups are of different kinds now; make such changes before "
                "wrapping the module"
            )
        if rules == self._told:
            return
        for g, rule in enumerate(rules):
            before = self._told[g] if self._told is not None else None
            if rule != before:
                text = "" if before is not None and before.text == rule.text else rule.text
                engine.tell(self._groups[g], rule.lr, rule.weight_decay, text)
        self._told = rules

    @torch.no_grad()
    def step(
        self, bucket: list[int], factor: float, scale: float, gradients: list[tuple[int, Any]]
    ) -> None:
        """Update the parameters of one bucket in Python.

        Parameters
        ----------
        bucket
            The indices of the bucket's parameters.
        factor
            Gradients are multiplied by this first.
        scale
            Learning rates are multiplied by this, as an algorithm in a directed topology wants it.
        gradients
            Parameters whose gradient is not the rank's own: a sum over ranks, or None.
        """
        for i, found in gradients:
            p = self._parameters[i]
            if found is None:
                p.grad = None
            elif p.grad is None:
                p.grad = from_dlpack(found).to(p.dtype, copy=True)
            else:
                p.grad.copy_(from_dlpack(found))
        parameters = [self._parameters[i] for i in bucket]
        inside = set(map(id, parameters))
        kept = [(group["params"], group["lr"]) for group in self.optimizer.param_groups]
        for group in self.optimizer.param_groups:
            group["params"] = [p for p in group["params"] if id(p) in inside]
            if scale != 1.0:
                group["lr"] = group["lr"] * scale
            for p in group["params"]:
                if factor != 1.0 and p.grad is not None:
                    p.grad.mul_(factor)
        try:
            self.before_update(parameters)
            self._own_step()
        finally:
            for group, (params, lr) in zip(self.optimizer.param_groups, kept, strict=True):
                group["params"], group["lr"] = params, lr

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers of the groups, and the states of an optimizer that runs in Python."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what state_dict() has returned."""
        self.optimizer.load_state_dict(state)
        self._told = None

    def has_stepped(self) -> None:
        """Keep PyTorch's schedules from warning of a step that they have not seen."""
        self.optimizer._opt_called = True  # type: ignore[attr-defined]

    def _indices(self) -> list[list[int]]:
        index = {id(p): i for i, p in enumerate(self._parameters)}
        groups = []
        for group in self.optimizer.param_groups:
            groups.append([index[id(p)] for p in group["params"] if id(p) in index])
        if sum(map(len, groups)) < len(index):
            raise _core.ConfigError(
                f"the optimizer has {sum(map(len, groups))} of the {len(index)} parameters that "
                "require gradients, allowed: all of them"
            )
        return groups

    def _replace_habits(self) -> None:
        has_warned = False

        def step(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            nonlocal has_warned
            if not has_warned:
                warnings.warn("backward() makes the whole step; leave out step()", stacklevel=2)
            has_warned = True

        def zero_grad(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            return None

        replace_step(self.optimizer, step)
        bound = types.MethodType(zero_grad, self.optimizer)
        self.optimizer.zero_grad = bound  # type: ignore[method-assign]


def _nothing(parameters: list[torch.nn.Parameter]) -> None:
    """Do nothing with the parameters of a bucket."""


def replace_step(optimizer: torch.optim.Optimizer, step: Callable[..., Any]) -> None:
    """Have ``optimizer.step()`` call a function, whose first argument is the optimizer."""
    # A schedule would otherwise wrap the function, and warn of one that it has not wrapped.
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    # Bound, because schedules of PyTorch expect a method.
    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
