"""What all models have in common that are sharded inside a node."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from . import _core
from .checks import describe_options, share_tensors
from .data_parallel import DecentralizedDataParallel
from .distributed import Session
from .islands import Islands, check_sharded_module, describe_sharded_module
from .own_topologies import world_of
from .parameters import EngineParameters
from .shards import Shard, ShardedParameters, reshard, shards_of

__all__ = ["ModelOfIslands", "names_places", "num_pieces", "share_options_of_islands"]

_OF_WHOLE_MODELS = {"save()", "load()", "state_dict()", "load_state_dict()", "Checkpoints.save()"}

_Call = TypeVar("_Call", bound=Callable[..., Any])


def names_places(call: _Call) -> _Call:
    """Have the errors of a trainer's method say the node and the place of ranks."""

    @functools.wraps(call)
    def named(self: ModelOfIslands, *args: Any, **kwargs: Any) -> Any:
        with self.islands.names_in_errors():
            return call(self, *args, **kwargs)

    return cast(_Call, named)


class ModelOfIslands(DecentralizedDataParallel):
    """A wrapper of a module whose parameters a node has in shards.

    A subclass sets ``islands`` before its __init__() calls that of this class, whose session is the
    one of this rank's place.
    """

    islands: Islands
    _trained: ShardedParameters

    def _take_module(self, session: Session, module: torch.nn.Module) -> EngineParameters:
        shards = check_sharded_module(module, self.islands)
        reshard(module)
        whole = self.islands.whole
        if whole.is_elastic:
            # The ranks compare and share it when they meet (Survival).
            return ShardedParameters(module)
        whole.agree("their models", describe_sharded_module(module, shards))
        sharded = {id(s.parameter) for s in shards}
        others = [p for p in module.parameters() if id(p) not in sharded]
        share_tensors(session, [*(s.flat for s in shards), *others, *module.buffers()])
        return ShardedParameters(module)

    def description(self) -> str:
        """Return the lines of the module that must be equal on all ranks."""
        return describe_sharded_module(self.module, shards_of(self.module))

    def share_loss(self, lost: _core.PeerLost | None) -> None:
        """Raise PeerLost if a rank of this node has lost others. Collective of the node."""
        assert self.islands.mates is not None
        self.islands.mates.share_loss(lost)

    def furthest_of_node(self, numbers: list[int]) -> list[int]:
        """Return the largest list of this node's ranks. Collective of the node."""
        assert self.islands.mates is not None
        return self.islands.mates.furthest(numbers)

    @property
    def share_of_node(self) -> tuple[int, int]:
        """Which of its node's batches this rank trains with, and how many the node has in a step.

        The ranks over which FSDP shards have batches of their own.
        """
        groups = (shard.group.mesh_info.shard_process_group for shard in self.shards)
        largest = max(groups, key=dist.get_world_size)
        return dist.get_rank(largest), dist.get_world_size(largest)

    def _untrained(self) -> list[torch.Tensor]:
        shards = {id(s.parameter): s for s in shards_of(self.module)}
        frozen = super()._untrained()
        return [shards[id(p)].flat if id(p) in shards else p for p in frozen]

    def _resume(self, options: str, *, joins: bool) -> None:
        # A forward pass without a backward pass leaves gathered parameters.
        reshard(self.module)
        super()._resume(options, joins=joins)

    @property
    def _session_of_buffers(self) -> Session:
        # The ranks of a node have buffers of their own.
        return self.islands.whole

    @property
    def shards(self) -> list[Shard]:
        """The shards that this rank has of the trained parameters."""
        return self._trained.shards

    @names_places
    def pieces(self) -> list[tuple[str, str, list[int], Any]]:
        """Return the pieces of the engine's state: name, type, shape, bytes. Collective."""
        super()._begin_call("state_dict()")
        self._adopt()
        self._start_early()
        return self._survival.attempt(lambda: self._engine.state([]))

    @names_places
    def load_pieces(
        self, state: list[tuple[str, str, list[int], int]], python: Mapping[str, Any]
    ) -> None:
        """Go on from pieces of state (name, type, shape, address). Collective."""
        super()._begin_call("load_state_dict()")
        if self._engine.has_started:
            self._engine.drain()
        self._engine.load_state(state, [])
        self._state.load_python(python)
        self._has_loaded()

    def _begin_call(self, call: str) -> None:
        if call in _OF_WHOLE_MODELS:
            raise _core.ConfigError(
                f"{call} of a model whose parameters are shards, which no other number of ranks "
                "could load, allowed: torch.distributed.checkpoint with gs.dcp_state()"
            )
        super()._begin_call(call)

    def python_state(self) -> dict[str, Any]:
        """Return what Python alone knows, but for the states of an optimizer that runs in it."""
        own = self._state.of_python()
        if self._optimizer.rule is None:
            own.pop("optimizer")
        return own

    @contextlib.contextmanager
    def steps_outside(self) -> Iterator[None]:
        """Leave steps of the optimizer inside the scope to PyTorch, which makes its states so."""
        with self._optimizer.with_own_step():
            yield

    @names_places
    def _on_gradient(self, p: torch.Tensor) -> None:
        super()._on_gradient(p)

    @names_places
    def _end_backward(self) -> None:
        super()._end_backward()

    @contextlib.contextmanager
    def global_average(self, keep: bool = False, buffers: bool = True) -> Iterator[float]:
        """Be the mean of all nodes' models inside the scope, with this node's distance."""
        # Gathered values would outlive the change, and those of the mean the scope.
        reshard(self.module)
        places = self.islands.size
        # Under tensor parallelism a node has some shards several times.
        copies = [
            (s, s.flat.clone(), places / num_pieces(s))
            for s in self._trained.shards
            if num_pieces(s) < places
        ]
        with (
            self.islands.names_in_errors(),
            super().global_average(keep, buffers) as distance,
        ):
            square = distance**2
            for shard, own, num_copies in copies:
                part = (own.double() - shard.flat.double()).square().sum().item()
                square -= (1.0 - 1.0 / num_copies) * part
            try:
                yield self.islands.sum_of_node(max(square, 0.0)) ** 0.5
            finally:
                reshard(self.module)

    @contextlib.contextmanager
    def write_parameters(self) -> Iterator[None]:
        """Write parameters inside the scope. Collective; the next step mixes nothing."""
        reshard(self.module)
        with super().write_parameters():
            try:
                yield
            finally:
                reshard(self.module)


def share_options_of_islands(
    islands: Islands, part: Session, options: Mapping[str, Any], others: Mapping[str, Any]
) -> dict[str, Any]:
    """Compare the options of all ranks, and return those of this one. Collective.

    Parameters
    ----------
    part
        The session of this rank's place.
    options
        What the engine gets.
    others
        What is compared as well.

    Raises
    ------
    ConfigError
        For options that differ, with the node and the place of the rank.
    """
    if not islands.whole.is_elastic:
        described = describe_options({**options, **others}, world_of(part))[1]
        islands.whole.agree("their options", described)
    # Else the ranks of a place compare them when they meet (Survival).
    # The ranks of place 0 write the timeline's file.
    alone = islands.place == 0
    return {key: v for key, v in options.items() if alone or not key.startswith("timeline")}


def num_pieces(shard: Shard) -> int:
    """Return into how many shards a node has cut a parameter, also by tensor parallelism."""
    p = shard.parameter
    sizes = zip(p.device_mesh.shape, p.placements, strict=True)
    return math.prod(size for size, placement in sizes if not placement.is_replicate())
