"""The optimizer and the schedule that a user gives to a wrapper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ._core import ConfigError
from .groups import first_needed_argument

__all__ = ["optimizer_of", "schedule_of"]


def optimizer_of(optim_fn: Any, parameters: list[Any]) -> torch.optim.Optimizer:
    """Return the optimizer that the user has given, or has a function for."""
    if not isinstance(optim_fn, torch.optim.Optimizer) and not callable(optim_fn):
        raise ConfigError(
            f"optim_fn: is {optim_fn!r}, allowed: an optimizer, or a function that makes one of "
            "parameters, as lambda ps: torch.optim.AdamW(ps, lr=1e-3)"
        )
    made = optim_fn if isinstance(optim_fn, torch.optim.Optimizer) else optim_fn(parameters)
    if not isinstance(made, torch.optim.Optimizer):
        raise ConfigError(
            f"optim_fn: has returned {made!r}, allowed: an optimizer of the parameters that it got"
        )
    return made


def schedule_of(
    lr_scheduler_fn: Callable[[torch.optim.Optimizer], Any] | None, optimizer: torch.optim.Optimizer
) -> Any:
    """Return the schedule that the user has a function for; None: there is no function."""
    if lr_scheduler_fn is None:
        return None
    schedule = lr_scheduler_fn(optimizer)
    if not callable(getattr(schedule, "step", None)):
        raise ConfigError(
            f"lr_scheduler_fn: has returned {schedule!r}, allowed: a schedule of the optimizer "
            "that it got"
        )
    name = first_needed_argument(schedule.step)
    if name is not None:
        raise ConfigError(
            f"lr_scheduler_fn: {type(schedule).__name__}.step() needs {name}, and backward() calls "
            "it after every step and has nothing to give, allowed: a schedule whose step() needs "
            f"nothing. Make the {type(schedule).__name__} from model.optimizer, and call its "
            "step() yourself"
        )
    return schedule
