"""Sums of gradients that are not finite, and that no optimizer of the user's may use."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from .. import _core

__all__ = ["NonfiniteSums"]


class NonfiniteSums:
    """Keeps sums that are not finite from the parameters.

    Parameters
    ----------
    skips
        Whether such steps are left out; else they end the run.
    """

    def __init__(self, skips: bool) -> None:
        self._skips = skips
        self.found = ""
        """Which summed gradient is not finite, if the next optimizer's step must not use it."""
        self.num_left_out = 0

    def check(
        self, optimizer: torch.optim.Optimizer, trained: Iterable[torch.nn.Parameter]
    ) -> None:
        """Leave out a step with such a sum, unless a GradScaler has seen it.

        Raises
        ------
        NonFiniteError
            Where no step is left out.
        """
        if not self.found or getattr(optimizer, "found_inf", None) is not None:
            return
        if _are_finite(optimizer):
            return
        if not self._skips:
            raise _core.NonFiniteError(
                f"{self.found}; try a smaller learning rate or clipping, or leave such steps "
                'out with options={"nonfinite": "skip"}'
            )
        for p in trained:
            p.grad = None
        self.found = ""
        self.num_left_out += 1


def _are_finite(optimizer: torch.optim.Optimizer) -> bool:
    grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
    return all(bool(grad.isfinite().all()) for grad in grads if grad is not None)
