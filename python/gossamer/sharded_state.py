"""The state of sharded nodes that gossip, for torch.distributed.checkpoint."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch

from .shards import Shard, local_of
from .state import SPELLED, TYPES_OF_PIECES

if TYPE_CHECKING:
    from .islands import Islands

__all__ = ["ShardedRunState", "distributed_state", "local_state"]

_MODEL = "model"
_OPTIMIZER = "optimizer"
_BLOCKS = "blocks"
_NUMBERS = "numbers"
_PYTHON = "python"
_BUFFERS = "buffers"

# How the names of a codec's grids end. The ranks of one place agree on them, and other places have
# others.
_OF_GRIDS = ("_grid", "_vote", "_largest_difference", "_most_steps")


class _Trainer(Protocol):
    """What the state needs of the trainer of ShardedGossip."""

    islands: Islands
    module: torch.nn.Module

    @property
    def shards(self) -> list[Shard]: ...

    def global_average(self) -> contextlib.AbstractContextManager[float]: ...

    def write_parameters(self) -> contextlib.AbstractContextManager[None]: ...

    def steps_outside(self) -> contextlib.AbstractContextManager[None]: ...

    def pieces(self) -> list[tuple[str, str, list[int], Any]]: ...

    def _has_state_of_others(self) -> bool: ...

    def load_pieces(
        self, state: list[tuple[str, str, list[int], int]], python: Mapping[str, Any]
    ) -> None: ...

    def python_state(self) -> dict[str, Any]: ...


class ShardedRunState:
    """What torch.distributed.checkpoint calls a Stateful.

    Parameters
    ----------
    trainer
        The trainer of a ShardedGossip.
    optimizer
        The optimizer that runs in Python; None: the engine has the optimizer's states.
    reshape
        "same", "shards" or "average", as dcp_state() has them.
    """

    def __init__(
        self, trainer: _Trainer, optimizer: torch.optim.Optimizer | None, reshape: str
    ) -> None:
        self._trainer = trainer
        self._optimizer = optimizer
        self._reshape = reshape

    @property
    def _node(self) -> str:
        # It is another one after an earlier node is lost.
        return f"node_{self._trainer.islands.node:05d}"

    @property
    def _place(self) -> str:
        return f"{self._node}_place_{self._trainer.islands.place:05d}"

    def state_dict(self) -> dict[str, Any]:
        """Return the mean model, and the state of this node, in DTensors. Collective."""
        with self._trainer.global_average():
            state: dict[str, Any] = {_MODEL: _copies(self._trainer.module.state_dict())}
        if self._reshape == "average":
            return state
        # Here, because importing it takes a second.
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

        blocks, numbers = self._engine_state()
        optimizer = {}
        if self._optimizer is not None:
            with self._trainer.steps_outside():
                optimizer = get_optimizer_state_dict(self._trainer.module, self._optimizer)
        of_node = {name: value for name, value in numbers.items() if not name.endswith(_OF_GRIDS)}
        state[self._node] = {
            _BLOCKS: blocks,
            _NUMBERS: _packed(of_node),
            _OPTIMIZER: _copies(optimizer),
            _PYTHON: _packed(self._trainer.python_state()),
        }
        if self._reshape == "same":
            state[self._place] = {
                _BUFFERS: _copies(dict(self._trainer.module.named_buffers())),
                _NUMBERS: _packed(numbers),
            }
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the state of this node, or begin from the mean model. Collective."""
        if self._trainer._has_state_of_others():
            return
        if self._reshape == "average":
            with self._trainer.write_parameters():
                self._trainer.module.load_state_dict(state[_MODEL])
            return
        from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

        own = state[self._node]
        place = state.get(self._place)
        numbers = _unpacked(own[_NUMBERS] if place is None else place[_NUMBERS])
        shards = {shard.name: shard for shard in self._trainer.shards}
        given = {
            name: shards[name.partition("/")[0]].flattened(block)
            for name, block in own[_BLOCKS].items()
        }
        kept = [t.contiguous() for t in (given | numbers).values()]
        pieces = [
            (name, SPELLED[t.dtype], list(t.shape), t.data_ptr())
            for name, t in zip(given | numbers, kept, strict=True)
        ]
        self._trainer.load_pieces(pieces, _unpacked(own[_PYTHON]))
        if self._optimizer is not None:
            with self._trainer.steps_outside():
                set_optimizer_state_dict(self._trainer.module, self._optimizer, own[_OPTIMIZER])
        if place is not None:
            with torch.no_grad():
                for name, buffer in self._trainer.module.named_buffers():
                    buffer.copy_(place[_BUFFERS][name])

    def _engine_state(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Return the engine's blocks, of which each rank has a shard, and its numbers."""
        shards = {shard.name: shard for shard in self._trainer.shards}
        blocks: dict[str, Any] = {}
        numbers: dict[str, torch.Tensor] = {}
        for name, kind, shape, values in self._trainer.pieces():
            dtype = TYPES_OF_PIECES[kind]
            found = torch.empty(0, dtype=dtype)
            if len(values) > 0:
                found = torch.frombuffer(values, dtype=dtype).reshape(shape)
            shard = shards.get(name.partition("/")[0])
            if shard is not None and found.numel() == shard.numel and found.dim() > 0:
                blocks[name] = shard.distributed(found)
            else:
                numbers[name] = found.clone()
        return blocks, numbers


def _copies(state: Any) -> Any:
    """Return the state with copies of its tensors, which later steps do not change."""
    if isinstance(state, torch.Tensor):
        return state.detach().clone()
    if isinstance(state, Mapping):
        return {name: _copies(value) for name, value in state.items()}
    if isinstance(state, list):
        return [_copies(value) for value in state]
    return state


def local_state(state: Any) -> Any:
    """Return the state with each DTensor as a tuple of this rank's part."""
    if isinstance(state, torch.Tensor) and hasattr(state, "_local_tensor"):
        return (local_of(state).clone(),)
    if isinstance(state, Mapping):
        return {name: local_state(value) for name, value in state.items()}
    if isinstance(state, list):
        return [local_state(value) for value in state]
    return state


def distributed_state(state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return what local_state() has made of the state of an optimizer like this one."""
    from torch.distributed.tensor import DTensor

    params = [p for group in optimizer.param_groups for p in group["params"]]

    def whole(p: Any, value: Any) -> Any:
        if not isinstance(value, tuple):
            return value
        return DTensor.from_local(
            value[0].to(p.device),
            p.device_mesh,
            p.placements,
            run_check=False,
            shape=p.shape,
            stride=p.stride(),
        )

    own = {
        i: {name: whole(params[i], value) for name, value in values.items()}
        for i, values in state["state"].items()
    }
    return {**state, "state": own}


def _packed(numbers: dict[str, Any]) -> bytes:
    """Return one value, because the names differ from step to step."""
    file = io.BytesIO()
    torch.save(numbers, file)
    return file.getvalue()


def _unpacked(value: bytes) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(io.BytesIO(value), weights_only=True)
    return found
