"""What a foreign training loop may train with, and the model that it evaluates and saves."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch

from .._core import ConfigError
from ..compat.ddp import DistributedDataParallel
from ..distributed import current_session
from ..sharded import ShardedGossip

__all__ = ["mean_of", "refuse_asynchronous", "refuse_survival"]


def refuse_asynchronous(library: str, options: Mapping[str, Any]) -> None:
    """Refuse an algorithm whose ranks make different numbers of steps.

    The library's loop waits for all ranks at steps of its choice, as where it logs. A rank that
    waits there sends no message, and a rank that needs this message never comes there.

    Raises
    ------
    ConfigError
        For the algorithm async_gossip.
    """
    algorithm = options.get("algorithm")
    name = algorithm.get("name") if isinstance(algorithm, Mapping) else algorithm
    if name == "async_gossip":
        raise ConfigError(
            f"algorithm is async_gossip, and {library} waits for all ranks at the same steps, "
            "allowed: an algorithm whose ranks go in step, such as gossip; async_gossip trains in "
            "a loop of your own"
        )


def refuse_survival(library: str, what: str) -> None:
    """Refuse a session that may lose ranks.

    Parameters
    ----------
    library
        Whose loop trains.
    what
        What of the library waits for all ranks of the beginning.

    Raises
    ------
    ConfigError
        In a session with survive=True.
    """
    if current_session().is_elastic:
        raise ConfigError(
            f"the session has survive=True, and {library} {what}, which ends or hangs when a rank "
            "of PyTorch's process group is lost, allowed: a loop of your own with "
            "gossamer.compat.ddp.DistributedDataParallel or gossamer.DecentralizedDataParallel"
        )


def mean_of(
    model: torch.nn.Module | ShardedGossip | None, keep: bool = False
) -> contextlib.AbstractContextManager[Any]:
    """Have a model be the mean inside the scope. Does nothing for a bare model, or a second time.

    Parameters
    ----------
    model
        A DistributedDataParallel, a ShardedGossip, or what is not trained.
    keep
        True: the mean stays the rank's model.
    """
    if not isinstance(model, DistributedDataParallel | ShardedGossip) or model.is_average:
        return contextlib.nullcontext()
    return model.global_average(keep=keep)
