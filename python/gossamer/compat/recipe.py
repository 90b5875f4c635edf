"""A recipe for all-reduce in a loop that clips and updates itself."""

from __future__ import annotations

import contextlib
import json
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch

from ..optimizers import rules_of

__all__ = ["LoopRecipe"]


class _Use(NamedTuple):
    """What an optimizer does with the length of a gradient."""

    has_length_of_rate: bool
    """Whether a step has the length of the rate, whatever the length of the gradient is."""
    decouples_decay: bool
    """Whether weights decay by the rate alone."""


# The optimizers of PyTorch for which the factor was measured (docs/measurements/recipes.md).
_MEASURED = {
    "sgd": _Use(has_length_of_rate=False, decouples_decay=False),
    "adam": _Use(has_length_of_rate=True, decouples_decay=False),
    "adamw": _Use(has_length_of_rate=True, decouples_decay=True),
    "muon": _Use(has_length_of_rate=True, decouples_decay=True),
}


class LoopRecipe:
    """Multiplies a loop's rate and largest norm by the noise of its gradients.

    The engine measures the factor: how much longer a rank's gradient is than the mean of all. It
    cannot change what the loop does between ``backward()`` and ``step()``. So three things happen:

    1. Every gradient is divided by the factor on its way into ``p.grad``. So ``clip_grad_norm_()``
       with norm c clips as much as norm c times the factor would.
    2. ``step()`` first multiplies the gradients by the factor again.
    3. Adam, AdamW and Muon then step with the rate times the factor. SGD keeps its rate. Decoupled
       weight decay stays as it is.

    Parameters
    ----------
    parameters
        The parameters whose gradients are divided.
    factor
        Returns the factor of the next step.
    """

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], factor: Callable[[], float]
    ) -> None:
        self._read = factor
        self._factor = 1.0
        self._has_stepped = True
        """Whether no gradient has come since the last step."""
        self._is_refused = False
        self._uses: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Use] = (
            weakref.WeakKeyDictionary()
        )
        own = weakref.ref(self)

        def divided(gradient: torch.Tensor) -> torch.Tensor:
            recipe = own()
            return gradient if recipe is None else recipe._divided(gradient)

        self._handles = [
            p.register_hook(divided)  # type: ignore[no-untyped-call]
            for p in parameters
        ]

    def _divided(self, gradient: torch.Tensor) -> torch.Tensor:
        if self._has_stepped:
            # All gradients of a step have one factor, also where several passes add them up.
            self._has_stepped = False
            self._factor = 1.0 if self._is_refused else self._read()
        return gradient if self._factor == 1.0 else gradient / self._factor

    def end_step(self) -> None:
        """Know that the next gradients are those of another step."""
        self._has_stepped = True

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Know an optimizer. Go on without the recipe, with a warning, if it was not measured."""
        use = _use_of(optimizer)
        if use is not None:
            self._uses[optimizer] = use
        if self._is_refused or use is not None:
            return
        self._is_refused = True
        warnings.warn(
            "recipe allreduce: rate and norm stay as they are, because no rule has been found for "
            f"the optimizer {type(optimizer).__name__}",
            stacklevel=2,
        )

    @contextlib.contextmanager
    def scope(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Give an optimizer its gradients and its rate for the step inside the scope."""
        if self._factor == 1.0:
            yield
            return
        groups = optimizer.param_groups
        grads = [p.grad for group in groups for p in group["params"] if p.grad is not None]
        torch._foreach_mul_(grads, self._factor)
        use = self._uses.get(optimizer)
        if use is None:
            yield
            return
        before = [(group["lr"], group["weight_decay"]) for group in groups]
        for group, (rate, decay) in zip(groups, before, strict=True):
            if use.has_length_of_rate:
                group["lr"] = rate * self._factor
            if use.decouples_decay:
                group["weight_decay"] = decay / self._factor
        try:
            yield
        finally:
            for group, (rate, decay) in zip(groups, before, strict=True):
                group["lr"], group["weight_decay"] = rate, decay

    def close(self) -> None:
        """Leave gradients as they are."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _use_of(optimizer: torch.optim.Optimizer) -> _Use | None:
    """Return what was measured for an optimizer; None: nothing."""
    kind = type(optimizer)
    # PyTorch has it from 2.9 on.
    if kind is getattr(torch.optim, "Muon", None):
        return _MEASURED["muon"]
    rules = rules_of(optimizer)
    return None if rules is None else _MEASURED.get(json.loads(rules[0].text)["name"])
