"""Losses that a torch.amp.GradScaler has multiplied."""

from __future__ import annotations

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
