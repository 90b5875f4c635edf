"""Steps in backward() for models that fully_shard() has sharded inside a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from . import _core
from .distributed import Session, current_session
from .island_model import ModelOfIslands, num_pieces, share_options_of_islands
from .islands import Islands, check_algorithm
from .sharded_state import ShardedRunState

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from .data_parallel import OptimFn
    from .own_topologies import AnyTopology

__all__ = ["ShardedDataParallel"]

# A norm of this rank's bucket, or of the step before, would be that of its shards alone.
_CLIPPING = ("none", "global")


class ShardedDataParallel(ModelOfIslands):
    """Trains shards in backward(). DecentralizedDataParallel makes it where it gets a mesh.

    FSDP reduces the gradients of a group over the node, and the engine mixes and updates the shards
    of that group at once, while the backward pass goes on. Global clipping is by the norm of the
    node's gradient, and ``nonfinite="skip"`` skips a step on all ranks of all nodes.

    Parameters
    ----------
    module, optim_fn, topology, algorithm, options, session, others
        As in DecentralizedDataParallel. The optimizer gets DTensors.
    mesh, nodes
        As in ShardedGossip.

    Raises
    ------
    ConfigError
        For a module, a mesh or options that cannot work, with what is allowed.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        optim_fn: OptimFn | torch.optim.Optimizer,
        topology: AnyTopology | None = None,
        *,
        mesh: DeviceMesh,
        nodes: str = "node",
        algorithm: str | Mapping[str, Any] = "gossip",
        options: Mapping[str, Any] | None = None,
        session: Session | None = None,
        **others: Any,
    ) -> None:
        whole = session if session is not None else current_session()
        check_algorithm(algorithm)
        islands = Islands.of_mesh(whole, mesh, nodes)
        self.islands = islands
        self._node = whole.part(islands.node)
        self._has_forward = False
        """Whether a forward pass has begun since the last update."""
        with islands.names_in_errors():
            part = islands.part()
            compared: dict[str, Any] = {"algorithm": algorithm, "topology": topology}
            compared |= {
                key: others[key] for key in ("codec", "bucket_size_in_mb") if key in others
            }
            given = share_options_of_islands(islands, part, options or {}, compared)
            super().__init__(
                module,
                optim_fn,
                topology,
                algorithm=algorithm,
                options=given,
                session=part,
                **others,
            )
            self._check_clipping(given)
        module.register_forward_pre_hook(self._note_forward)

    def run_state(self, reshape: str) -> ShardedRunState:
        """Return what dcp_state() returns."""
        own = self._optimizer.optimizer if self._optimizer.rule is None else None
        return ShardedRunState(self, own, reshape)

    def _island_sessions(self) -> tuple[Session, Session]:
        return self._node, self.islands.whole

    def _new_engine(self) -> _core.Engine:
        kind = type(self._optimizer.optimizer).__name__
        if kind == "Muon" and self._optimizer.rule is not None:
            raise _core.ConfigError(
                f"the optimizer {kind} of the engine works on matrices, and sees a shard only, "
                "allowed: ShardedGossip with an optimizer that works on DTensors"
            )
        return super()._new_engine()

    def _check_clipping(self, options: Mapping[str, Any]) -> None:
        mode = options.get("grad_clip", "none")
        if mode not in _CLIPPING:
            raise _core.ConfigError(
                f'grad_clip: is "{mode}", by which each rank would clip its shards for itself, '
                'allowed: "none", "global"'
            )
        places = self.islands.size
        if mode != "none" and any(num_pieces(s) < places for s in self.shards):
            raise _core.ConfigError(
                "grad_clip: under tensor parallelism several ranks have one shard, whose norm "
                "would count several times, allowed: ShardedGossip with clip_grad_norm_()"
            )

    def _take_in_changes(self) -> None:
        """Train what there was at first: between two passes FSDP shows gathered parameters."""

    def _note_forward(self, module: torch.nn.Module, args: Any) -> None:
        if torch.is_grad_enabled():
            self._has_forward = True

    def _begin_step(self) -> None:
        # FSDP gathers the present values for the backward pass of an older graph, in silence.
        if self._passes.has_begun and not self._has_forward:
            raise _core.ConfigError(
                "backward() of a forward pass from before the last update, whose values are gone, "
                "allowed: one backward() after each forward pass, or no_sync() for all but the last"
            )
        super()._begin_step()

    def _end_step(self) -> None:
        super()._end_step()
        self._has_forward = False
        self._trained.check_gathered()
