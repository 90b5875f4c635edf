"""The state of a run for torch.distributed.checkpoint."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, cast

import torch

from . import _core

if TYPE_CHECKING:
    from .data_parallel import DecentralizedDataParallel
    from .sharded import ShardedGossip
    from .sharded_state import ShardedRunState

__all__ = ["dcp_state"]

_MODEL = "model"
_NUMBERS = "python"


class _RunState:
    """What torch.distributed.checkpoint calls a Stateful."""

    def __init__(self, model: DecentralizedDataParallel, reshape: str) -> None:
        self._model = model
        self._is_mean = reshape == "average"
        self._own = f"rank_{model.session.rank:05d}"

    def state_dict(self) -> dict[str, Any]:
        """Return the mean model, which is equal on all ranks, and this rank's own state."""
        with self._model.global_average():
            module = self._model.module.state_dict()
            state: dict[str, Any] = {_MODEL: {name: t.clone() for name, t in module.items()}}
        if not self._is_mean:
            own = self._model.state_dict()
            file = io.BytesIO()
            torch.save(own.pop(_NUMBERS), file)
            # One value, because what it holds differs from step to step.
            state[self._own] = own | {_NUMBERS: file.getvalue()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from this rank's own state, or begin from the mean model."""
        if self._is_mean:
            with self._model.write_parameters():
                self._model.module.load_state_dict(state[_MODEL])
            return
        own = dict(state[self._own])
        numbers = torch.load(io.BytesIO(own.pop(_NUMBERS)), map_location="cpu", weights_only=True)
        self._model.load_state_dict(own | {_NUMBERS: numbers})


def dcp_state(
    model: DecentralizedDataParallel | ShardedGossip, *, reshape: str = "same"
) -> _RunState | ShardedRunState:
    """Return the state of a run, which torch.distributed.checkpoint saves and loads.

    The ranks' models differ, and PyTorch's functions take what has one name on several ranks for
    equal. So a checkpoint has two kinds of entries:

    1. ``model`` is the mean of the ranks' models, under the module's own names. Any number of
       ranks loads it, and so does PyTorch alone.
    2. ``rank_00003`` is what rank 3 needs to go on bit for bit, as state_dict() returns it.

    Every rank saves, with a process group of PyTorch's::

        gossamer.integrations.meeting.begin_process_group()
        dcp.save({"run": gs.dcp_state(model)}, checkpoint_id=folder)
        dcp.load({"run": gs.dcp_state(model)}, checkpoint_id=folder)      # as many ranks

        dcp.load({"run": {"model": net.state_dict()}}, checkpoint_id=folder)   # PyTorch alone

    The state of a ShardedGossip consists of DTensors, which PyTorch deals anew over other shards.
    Beside ``model`` it has ``node_00001``, the models, blocks and optimizer states of a node, and
    ``node_00001_place_00000``, the buffers and numbers of a rank.

    Parameters
    ----------
    model
        The wrapper, or the ShardedGossip. Its collective calls are made when PyTorch asks for the
        state.
    reshape
        "same": the entries of all kinds, for the same number of ranks. "average": ``model`` alone,
        from which any number of ranks begins; optimizer and schedule begin anew. "shards": for the
        same number of nodes of a ShardedGossip, with any number of ranks in each; codecs agree anew
        on their grids, and buffers stay as they are.
    """
    sharded = getattr(model, "run_state", None)
    _check_reshape(
        reshape, ("same", "average") if sharded is None else ("same", "shards", "average")
    )
    if sharded is not None:
        return cast("ShardedRunState", sharded(reshape))
    return _RunState(cast("DecentralizedDataParallel", model), reshape)


def _check_reshape(reshape: str, allowed: tuple[str, ...]) -> None:
    if reshape not in allowed:
        names = ", ".join(f'"{name}"' for name in allowed)
        raise _core.ConfigError(f'reshape: is "{reshape}", allowed: {names}')
