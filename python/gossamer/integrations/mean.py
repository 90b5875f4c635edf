"""The mean of all ranks' models, where a foreign training loop asks for a model."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from ..compat.ddp import DistributedDataParallel

__all__ = ["mean_of"]


def mean_of(model: torch.nn.Module, keep: bool = False) -> contextlib.AbstractContextManager[Any]:
    """Have a wrapper be the mean inside the scope. Does nothing for a bare model, or a second time.

    Parameters
    ----------
    model
        A DistributedDataParallel, or a module that is not trained.
    keep
        True: the mean stays the rank's model.
    """
    if not isinstance(model, DistributedDataParallel) or model.is_average:
        return contextlib.nullcontext()
    return model.global_average(keep=keep)
