"""Losses that a torch.amp.GradScaler has multiplied."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler, OptState

from . import _core

__all__ = ["LossScale"]


class LossScale:
    """Divides the gradients of a scaled loss, and tells the scaler which steps were left out.

    The training loop keeps its `scaler.scale(loss).backward()` and `scaler.update()`;
    `scaler.step(optimizer)` does no harm in between.

    Parameters
    ----------
    scaler
        The scaler of the training loop. All ranks leave out the same steps, so its scale is the
        same on all.
    optimizer
        The wrapped optimizer.
    """

    def __init__(self, scaler: GradScaler, optimizer: torch.optim.Optimizer) -> None:
        self._scaler = scaler
        self._optimizer = optimizer
        self._num_skipped = 0
        self._own_unscale = vars(scaler).get("unscale_")
        scaler.unscale_ = functools.partial(  # type: ignore[method-assign]
            _unscale, scaler, id(optimizer)
        )

    def release(self) -> None:
        """Give the scaler's unscale_() back, when the engine ends."""
        if self._own_unscale is not None:
            self._scaler.unscale_ = self._own_unscale  # type: ignore[method-assign]
        else:
            vars(self._scaler).pop("unscale_", None)

    def has_loaded(self, engine: _core.Engine) -> None:
        """Count from what a loaded run has left out."""
        self._num_skipped = int(engine.metrics()["skipped_steps"])

    def before_step(self, engine: _core.Engine) -> None:
        """Have the engine divide by the scale of this step."""
        engine.set_gradient_scale(1.0 / self._scaler.get_scale())

    def after_step(self, engine: _core.Engine) -> None:
        """Tell the scaler whether the step was left out, as its own step() would have found."""
        num_skipped = int(engine.metrics()["skipped_steps"])
        is_skipped = num_skipped > self._num_skipped
        self._num_skipped = num_skipped
        if not self._scaler.is_enabled():
            return
        state = self._scaler._per_optimizer_states[id(self._optimizer)]
        device = torch.device("cpu")
        state["found_inf_per_device"] = {device: torch.tensor(float(is_skipped))}
        state["stage"] = OptState.UNSCALED


def _unscale(scaler: GradScaler, wrapped: int, optimizer: torch.optim.Optimizer) -> Any:
    """Take the place of ``scaler.unscale_()``, which finds no gradients of a wrapped optimizer."""
    if id(optimizer) == wrapped and scaler.is_enabled():
        raise _core.ConfigError(
            "scaler.unscale_() of an optimizer whose step backward() has made: the gradients were "
            "divided by the scale then, and are used up. Leave it out; to clip, wrap with "
            'options={"grad_clip": "global", "grad_clip_norm": 1.0}, which clips after the division'
        )
    return type(scaler).unscale_(scaler, optimizer)
