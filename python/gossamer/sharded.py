"""Gossip between nodes that shard a model inside, by PyTorch's fully_shard()."""

from __future__ import annotations

import contextlib
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from . import _core
from .compat.trainer import Trainer
from .distributed import Session, current_session, failure_of_thread
from .island_model import ModelOfIslands, names_places, share_options_of_islands
from .islands import Islands, check_options
from .own_topologies import AnyTopology
from .sharded_state import ShardedRunState, distributed_state, local_state
from .shards import local_of, reshard

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from .data_parallel import DecentralizedDataParallel

__all__ = ["ShardedGossip"]

# Within this time, the news of a rank that has died reaches the others.
_NEWS_S = 1.0
# The attribute of the optimizer that keeps the trainer.
_TRAINER = "_gossamer_trainer"


class _ShardedTrainer(ModelOfIslands, Trainer):
    """Makes the steps of the user's optimizer on this rank's shards.

    Parameters
    ----------
    islands
        The nodes.
    optimizer
        The optimizer of the module's parameters.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        islands: Islands,
        *,
        sums_gradients: bool,
        topology: AnyTopology | None,
        **options: Any,
    ) -> None:
        self.islands = islands
        self._given = optimizer
        super().__init__(module, sums_gradients, topology, None, **options)
        self.renew = self._refuse_new
        if not sums_gradients:
            self._optimizers.own_of(optimizer)
        if self._session.is_elastic:
            # Before FSDP gathers what this rank may get from the others.
            hook = module.register_forward_pre_hook(_enter_before(self), prepend=True)
            self._handles.append(hook)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The user's optimizer."""
        return self._given

    def _refuse_new(self) -> Trainer:
        raise _core.ConfigError(
            "parameters that are trained only now, allowed: to call finish(), and to make a new "
            "ShardedGossip"
        )

    @names_places
    def before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Take the place of the optimizer's step, where gradients are not summed."""
        self._refuse_scaler(getattr(optimizer, "found_inf", None) is not None)
        self._trained.check_gathered()
        return super().before_step(optimizer, args, kwargs)

    @names_places
    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Make the step: mix, have the optimizer update, and send."""
        super().after_step(optimizer)

    def _numbers(self) -> dict[str, Any]:
        """Return also the optimizer's states, of which the rank that takes them has its shards."""
        own = super()._numbers()
        own["optimizers"] = [(at, local_state(state)) for at, state in own["optimizers"]]
        return own

    def _take_later_state(self, optimizer: torch.optim.Optimizer) -> None:
        states = self._optimizers.states
        self._optimizers.states = [(at, distributed_state(v, optimizer)) for at, v in states]
        super()._take_later_state(optimizer)

    def _averaged(self) -> list[Any]:
        return [local_of(p) for p in super()._averaged()]

    def finish_alone(self) -> None:
        """Make a step of the other nodes without a batch."""
        if self._sums_gradients:
            self.finish_step()
        else:
            self.step_without_batch()

    def agree_on_overflow(
        self, found: dict[torch.device, torch.Tensor]
    ) -> dict[torch.device, torch.Tensor]:
        """Refuse a GradScaler."""
        self._refuse_scaler(True)
        return found

    @staticmethod
    def _refuse_scaler(is_used: bool) -> None:
        if is_used:
            raise _core.ConfigError(
                "torch.amp.GradScaler: a skipped step() would leave the other nodes waiting, "
                "allowed: bfloat16, which needs no scaler"
            )

    def _are_finite(self, optimizer: torch.optim.Optimizer) -> bool:
        # Of this rank's shards, because the other ranks of the node do not ask.
        grads = [self._trained.gradient(i) for i in range(len(self._trained.tensors))]
        return all(bool(grad.isfinite().all()) for grad in grads if grad is not None)

    def close(self, *, failed: bool) -> None:
        """End the engine's work; after a failure of PyTorch's collectives, say whose rank is lost.

        They fail first where a rank of the own node dies, and name no rank.
        """
        failure = failure_of_thread()
        if isinstance(failure, RuntimeError) and not isinstance(failure, _core.CommError):
            self._tell_lost_ranks()
        super().close(failed=failed)

    def _tell_lost_ranks(self) -> None:
        end = time.monotonic() + _NEWS_S
        while time.monotonic() < end:
            try:
                self.islands.whole.check()
            except _core.CommError as error:
                text = self.islands.with_names(str(error))
                if self._session.is_elastic:
                    text += ": the other nodes go on without this one; restart it as a whole"
                print(f"gossamer: {text}", file=sys.stderr)
                return
            time.sleep(_NEWS_S / 20)

    @contextlib.contextmanager
    def steps_outside(self) -> Iterator[None]:
        """Leave steps of the optimizer inside the scope to PyTorch, which makes its states so."""
        self._is_stepping = True
        try:
            yield
        finally:
            self._is_stepping = False


def _enter_before(trainer: _ShardedTrainer) -> Callable[[torch.nn.Module, Any], None]:
    """Return a hook before forward passes, the first of which may need the others' model."""
    reference = weakref.ref(trainer)

    def enter(module: torch.nn.Module, args: Any) -> None:
        found = reference()
        if found is not None and module.training and torch.is_grad_enabled():
            with found.islands.names_in_errors():
                found.enter()

    return enter


class ShardedGossip:
    """Trains a model that is sharded inside each node, and gossips between the nodes.

    ``optimizer.step()`` makes the step: each rank mixes its shard with that of the rank of the same
    place in another node, the optimizer updates it, and the next exchange starts. The exchange has
    the whole next forward and backward pass. Everything else is the loop's own and PyTorch's:
    clipping by ``clip_grad_norm_``, accumulation, tensor parallelism, mixed precision, activation
    checkpointing and compilation::

        gs.initialize_dist()
        mesh = init_device_mesh("cuda", (nodes, local), mesh_dim_names=("node", "shard"))
        for block in net.layers:
            fully_shard(block, mesh=mesh["shard"])
        fully_shard(net, mesh=mesh["shard"])
        optimizer = torch.optim.AdamW(net.parameters())
        gossip = gs.ShardedGossip(net, optimizer, "one-peer-exp", mesh=mesh)

    In a session with survive=True a node is a member: it is lost, and joins, as a whole
    (docs/guide/islands.md). ``session`` follows the nodes.

    With ``algorithm="allreduce"``, ``backward()`` leaves the mean over all nodes in every
    ``p.grad``, as PyTorch's own HSDP does.

    The exchanges go on as long as the optimizer is there, or until finish().

    Parameters
    ----------
    module
        The module, after fully_shard() by meshes of the node alone. All nodes get node 0's values.
    optimizer
        The optimizer of all its parameters, made after fully_shard().
    topology
        The topology of the nodes, as that of DecentralizedDataParallel.
    mesh
        The mesh of all ranks. A rank's place is its number in all dimensions but that of the nodes.
        None: each node has a job of its own (``initialize_dist(rendezvous=, nodes=, node=)``).
    nodes
        The dimension of the mesh that counts the nodes.
    algorithm, codec, bucket_size_in_mb, options
        As in DecentralizedDataParallel, without clipping, nonfinite="skip" and algorithms
        whose ranks make different numbers of steps. A timeline shows the ranks of place 0.
    spread
        Whether place l begins with round l of the topology, so that a node mixes with several nodes
        in a step. The bytes are the same.
    session
        The session of all ranks; None: current_session().

    Raises
    ------
    ConfigError
        For a module, a mesh or options that cannot work, with what is allowed.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        topology: AnyTopology | None = None,
        *,
        mesh: DeviceMesh | None = None,
        nodes: str = "node",
        algorithm: str | Mapping[str, Any] = "gossip",
        codec: str | Mapping[str, Any] = "fp32",
        bucket_size_in_mb: float = 25,
        spread: bool = False,
        options: Mapping[str, Any] | None = None,
        session: Session | None = None,
    ) -> None:
        whole = session if session is not None else current_session()
        given = dict(options or {})
        check_options(algorithm, given)
        islands = Islands.of_jobs(whole) if mesh is None else Islands.of_mesh(whole, mesh, nodes)
        _check_optimizer(optimizer, module)
        name = algorithm if isinstance(algorithm, str) else algorithm.get("name")
        with islands.names_in_errors():
            part = islands.part()
            compared: dict[str, Any] = {"algorithm": algorithm, "codec": codec, "spread": spread}
            compared |= {"topology": topology, "bucket_size_in_mb": bucket_size_in_mb}
            given = share_options_of_islands(islands, part, given, compared)
            if spread:
                given["first_round"] = islands.place
            self._trainer = _ShardedTrainer(
                module,
                optimizer,
                islands,
                sums_gradients=name == "allreduce",
                topology=topology,
                algorithm=algorithm,
                codec=codec,
                bucket_size_in_mb=bucket_size_in_mb,
                options=given,
                session=part,
            )
        # A loop that keeps the optimizer alone goes on to exchange.
        self._optimizer = optimizer
        vars(optimizer)[_TRAINER] = self._trainer

    @property
    def trainer(self) -> DecentralizedDataParallel:
        """What makes the steps, for gs.Run."""
        return self._trainer

    @property
    def session(self) -> Session:
        """The session of the ranks of this place, one of each node."""
        return self._trainer.session

    @property
    def node(self) -> int:
        """The number of this rank's node."""
        return self._trainer.islands.node

    @property
    def place(self) -> int:
        """The number of this rank in its node."""
        return self._trainer.islands.place

    @property
    def share_of_node(self) -> tuple[int, int]:
        """Which of its node's batches this rank trains with, and how many the node has in a step.

        The ranks over which FSDP shards have batches of their own, which ElasticSampler deals.
        """
        return self._trainer.share_of_node

    @property
    def has_newcomers(self) -> bool:
        """Whether a node joins the run now, or this node lacks steps or calls of the others.

        Ranks then save no checkpoint before the next step.
        """
        return self._trainer.has_newcomers

    @property
    def num_steps(self) -> int:
        """The steps that this rank has made. A rank that joins a run does so at the latest here."""
        return self._trainer.num_steps

    @property
    def is_average(self) -> bool:
        """Whether the model is the mean, inside global_average()."""
        return self._trainer.is_average

    def register_state(self, name: str, owner: Any) -> None:
        """Have a node that joins take node 0's state of an object of yours, by place.

        Parameters
        ----------
        name
            Its name.
        owner
            An object with state_dict() and load_state_dict(), such as a schedule.
        """
        self._trainer.register_state(name, owner)

    def finish_step(self) -> None:
        """Take part in a step of the other nodes without a batch. All ranks of the node call it.

        For a node that has no batch left while others have one: in place of the backward pass under
        "allreduce", and else in place of ``optimizer.step()``, where it mixes and updates nothing.
        """
        with self._trainer.islands.names_in_errors():
            self._trainer.finish_alone()

    def drain(self) -> None:
        """Wait for the exchanges under way. The next step still mixes in what has arrived."""
        with self._trainer.islands.names_in_errors():
            self._trainer.drain()

    def global_average(
        self, keep: bool = False, buffers: bool = True
    ) -> contextlib.AbstractContextManager[float]:
        """Be the mean of all nodes' models inside the scope. Collective of all ranks.

        Yields the distance of this node's model from the mean, an L2 norm over all parameters.
        Buffers of floating point are averaged over all ranks. The scope begins and ends with
        reshard(), so that no gathered parameter outlives the change.

        Parameters
        ----------
        keep
            True: the mean stays this node's model after the scope.
        buffers
            Whether buffers take part, and have their own values again after the scope.
        """
        return self._trainer.global_average(keep, buffers)

    @contextlib.contextmanager
    def write_parameters(self) -> Iterator[None]:
        """Write parameters inside the scope. Collective; the next step mixes nothing.

        A step of the optimizer inside the scope is PyTorch's own, as set_optimizer_state_dict()
        makes one before it loads.
        """
        with self._trainer.write_parameters(), self._trainer.steps_outside():
            yield

    def run_state(self, reshape: str) -> ShardedRunState:
        """Return what dcp_state() returns."""
        return ShardedRunState(self._trainer, self._optimizer, reshape)

    def metrics(self) -> dict[str, float]:
        """Return sums over all steps of this rank: steps, bytes sent, seconds, and more."""
        return self._trainer.metrics()

    def finish(self) -> None:
        """Wait for the exchanges under way, and free the engine; the program's end does it, too."""
        self._trainer.finish()
        vars(self._optimizer).pop(_TRAINER, None)


def _check_optimizer(optimizer: torch.optim.Optimizer, module: torch.nn.Module) -> None:
    """Refuse an optimizer that lacks parameters of the module, or has others."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise _core.ConfigError(
            f"optimizer: is {optimizer!r}, allowed: an optimizer of the module's parameters"
        )
    reshard(module)
    trained = {id(p) for p in module.parameters() if p.requires_grad}
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if trained <= own and own <= {id(p) for p in module.parameters()}:
        return
    raise _core.ConfigError(
        f"the optimizer has {len(trained & own)} of the module's {len(trained)} trained "
        f"parameters, and {len(own - trained)} others, allowed: an optimizer of all of them alone, "
        "made after fully_shard(), which replaces parameters"
    )
