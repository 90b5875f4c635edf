"""Where a rank stands when nodes shard a model inside and gossip with one another.

A node is the ranks that hold one model together. A place is a rank's number inside its node. The
ranks of one place, of all nodes, exchange their shards.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from . import _core
from .checks import is_sharded
from .devices import check_device
from .distributed import is_of_thread
from .mates import Mates, check_node
from .shards import Shard, local_of, shards_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from .distributed import Session

__all__ = ["Islands", "check_options", "check_sharded_module", "describe_sharded_module"]

_VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])

_ALONE = {
    "async_gossip": "each place would mix with shards of other steps",
    "node_gossip": "it shards inside a node what every rank holds whole, and here FSDP shards",
}


class Islands:
    """The nodes, and this rank's place among them.

    Parameters
    ----------
    whole
        The session of all ranks.
    nodes
        The ranks of each node, by place. None: ``size`` ranks one after the other, as many nodes as
        there are.
    size
        The ranks of a node.
    place
        This rank's place.
    is_flat
        Whether the shards' dimension is a node's only one, as without tensor parallelism.
    """

    def __init__(
        self,
        whole: Session,
        nodes: list[list[int]] | None,
        size: int,
        place: int,
        *,
        is_flat: bool,
    ) -> None:
        self.whole, self.size, self.place, self.is_flat = whole, size, place, is_flat
        self._nodes = nodes
        self.mates = Mates() if whole.is_elastic else None
        """What the ranks of this node tell one another; None: no node is lost, and none joins."""

    @property
    def nodes(self) -> list[list[int]]:
        """The ranks of each node, by place."""
        if self._nodes is not None:
            return self._nodes
        size, num = self.size, self.whole.world_size
        return [list(range(i, i + size)) for i in range(0, num, size)]

    @property
    def node(self) -> int:
        """The number of this rank's node; -1 before it has joined a run."""
        own = self.whole.rank
        return next((i for i, members in enumerate(self.nodes) if own in members), -1)

    @classmethod
    def of_mesh(cls, session: Session, mesh: DeviceMesh, dimension: str) -> Islands:
        """Return the islands of a mesh, one of whose dimensions counts the nodes.

        Raises
        ------
        ConfigError
            For a mesh that has no such dimension, or other ranks than the session.
        """
        _check_processes(session)
        if session.is_elastic:
            raise _core.ConfigError(
                "survive: is True, and mesh= has the ranks of all nodes in one process group of "
                "PyTorch, which ends with any of them, allowed: a torchrun job for each node with "
                "initialize_dist(nodes=, node=), and ShardedGossip without mesh="
            )
        names = list(mesh.mesh_dim_names or ())
        if dimension not in names:
            raise _core.ConfigError(
                f'nodes: is "{dimension}", and the mesh has the dimensions {names}, allowed: the '
                "name of the one that counts nodes, as in init_device_mesh(device, (nodes, local), "
                'mesh_dim_names=("node", "shard"))'
            )
        own = dist.get_rank()
        by_node = mesh.mesh.movedim(names.index(dimension), 0)
        ranks = by_node.reshape(len(by_node), -1).tolist()
        every = mesh.mesh.flatten().sort().values.tolist()
        if every != list(range(session.world_size)) or own != session.rank:
            raise _core.ConfigError(
                f"mesh: has the ranks {ranks} in its nodes, and the session has "
                f"{session.world_size} ranks, of which this is {session.rank}, allowed: a mesh of "
                "all ranks of the session"
            )
        place = next(members.index(own) for members in ranks if own in members)
        return cls(session, ranks, len(ranks[0]), place, is_flat=mesh.ndim == 2)

    @classmethod
    def of_jobs(cls, session: Session) -> Islands:
        """Return the islands of a session whose nodes have a job each.

        Raises
        ------
        ConfigError
            Where PyTorch connects more ranks than a node has.
        """
        _check_processes(session)
        check_node(session)
        size, place = dist.get_world_size(), dist.get_rank()
        if session.is_elastic:
            # Before a node joins, its session has no ranks.
            is_job = session.place == place
        else:
            is_job = size == session.node_size and place == session.rank % size
            is_job = is_job and size < session.world_size
        if not is_job:
            raise _core.ConfigError(
                f"mesh: is None, and torch.distributed connects {size} ranks, where a node of the "
                f"session has {session.node_size}, allowed: mesh=, the mesh of all ranks; or a "
                "torchrun job for each node with initialize_dist(rendezvous=, nodes=, node=)"
            )
        return cls(session, None, size, place, is_flat=False)

    def part(self) -> Session:
        """Return the session of the ranks of this place. Collective of all ranks.

        Raises
        ------
        ConfigError
            For a mesh whose nodes are not in the order of their ranks.
        """
        found = self.whole.part(self.place)
        if not self.whole.is_elastic and found.rank != self.node:
            raise _core.ConfigError(
                f"mesh: its nodes have the ranks {self.nodes}, allowed: ranks that ascend from "
                "node to node at every place"
            )
        return found

    def ranks_of_torch(self) -> set[int]:
        """Return this node's ranks as torch.distributed counts them, which may know no others."""
        if self._nodes is None:
            return set(range(self.size))
        return set(self.nodes[self.node])

    def sum_of_node(self, number: float) -> float:
        """Return the sum over this node's ranks. Collective of all ranks."""
        if self.mates is not None:
            return self.mates.sum(number)
        numbers = [0.0] * len(self.nodes)
        numbers[self.node] = number
        return float(self.whole.sum(numbers)[self.node])

    @contextlib.contextmanager
    def names_in_errors(self) -> Iterator[None]:
        """Have errors say the node and the place of the ranks that they name."""
        try:
            yield
        except (_core.CommError, _core.ConfigError) as error:
            text = self.with_names(str(error))
            if text == str(error):
                raise
            named = type(error)(text)
            if hasattr(error, "exit_code"):
                vars(named)["exit_code"] = error.exit_code
            raise named from error

    def with_names(self, text: str) -> str:
        """Return a text with node and place behind each rank."""
        if "(node " in text:
            return text
        places = {r: (i, k) for i, members in enumerate(self.nodes) for k, r in enumerate(members)}

        def name(rank: str) -> str:
            node, place = places.get(int(rank), (-1, -1))
            return rank if node < 0 else f"{rank} (node {node}, place {place})"

        def with_places(found: re.Match[str]) -> str:
            return found[1] + re.sub(r"\d+", lambda rank: name(rank[0]), found[2])

        return re.sub(r"\b(ranks? )(\d+(?:(?:, | and )\d+)*)\b", with_places, text)


def _check_processes(session: Session) -> None:
    if is_of_thread(session):
        raise _core.ConfigError(
            "ShardedGossip in run_threads(), whose ranks have one process group of PyTorch, "
            "allowed: ranks that are processes"
        )
    if not (dist.is_available() and dist.is_initialized()):
        raise _core.ConfigError(
            "torch.distributed has no process group, in which fully_shard() works, allowed: after "
            "torch.distributed.init_process_group()"
        )


def check_algorithm(algorithm: str | Mapping[str, Any]) -> None:
    """Refuse an algorithm that shards cannot follow.

    Raises
    ------
    ConfigError
        With its name.
    """
    name = algorithm if isinstance(algorithm, str) else algorithm.get("name")
    if name in _ALONE:
        raise _core.ConfigError(
            f'algorithm: is "{name}": {_ALONE[name]}, allowed: gossip, outer, allreduce, '
            "gradient_tracking, and others whose ranks make the same steps"
        )


def check_options(algorithm: str | Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Refuse what cannot be decided by ranks that have a shard each.

    Raises
    ------
    ConfigError
        With the name of the option.
    """
    check_algorithm(algorithm)
    if options.get("grad_clip", "none") != "none":
        raise _core.ConfigError(
            f'grad_clip: is "{options["grad_clip"]}", by which each rank would clip its shard for '
            "itself, allowed: torch.nn.utils.clip_grad_norm_() before step()"
        )
    if options.get("nonfinite") == "skip":
        raise _core.ConfigError(
            'nonfinite: is "skip", by which ranks of a node would leave out steps one by one, '
            'allowed: "abort"; look at what torch.nn.utils.clip_grad_norm_() returns before step()'
        )


def check_sharded_module(module: torch.nn.Module, islands: Islands) -> list[Shard]:
    """Return the shards of a module, or refuse it.

    Raises
    ------
    ConfigError
        With the name of what cannot be trained, and with what is allowed.
    """
    if _VERSION < (2, 6):
        raise _core.ConfigError(
            f"fully_shard() of torch {torch.__version__} is private, allowed: 2.6 and later"
        )
    for name, part in module.named_modules():
        kind = type(part).__name__
        if kind in ("FullyShardedDataParallel", "DistributedDataParallel", "DataParallel"):
            place = f"the module's part {name}" if name else "the module"
            raise _core.ConfigError(f"{place} is in {kind}, allowed: fully_shard()")
    shards = shards_of(module)
    sharded = {id(s.parameter) for s in shards}
    for name, p in module.named_parameters():
        if p.requires_grad and id(p) not in sharded:
            raise _core.ConfigError(
                f"parameter {name} is trained and not sharded, so its gradients differ inside the "
                "node, allowed: fully_shard() of the part that has it"
            )
    for shard in shards:
        _check_mesh(shard, islands)
        _check_shard(shard)
    trained = [s for s in shards if s.parameter.requires_grad]
    if not trained:
        raise _core.ConfigError(
            "the model has no parameter that requires a gradient: nothing can be trained"
        )
    check_device((s.name, s.parameter) for s in trained)
    _check_means(shards)
    return shards


def _check_mesh(shard: Shard, islands: Islands) -> None:
    info = shard.group.mesh_info
    dimension = getattr(info, "replicate_mesh_dim", None)
    if dimension is not None:
        names = info.mesh.mesh_dim_names
        name = names[dimension] if names else dimension
        raise _core.ConfigError(
            f"parameter {shard.name} is sharded over a mesh whose dimension {name} sums gradients "
            f"over {info.mesh.size(dimension)} nodes, allowed: the node's own mesh, as "
            'mesh["shard"]'
        )
    ranks = set(dist.get_process_group_ranks(info.shard_process_group))
    own = islands.ranks_of_torch()
    if not ranks <= own:
        raise _core.ConfigError(
            f"parameter {shard.name} is sharded over the ranks {sorted(ranks)}, which are of "
            'several nodes, allowed: the node\'s own mesh, as mesh["shard"]'
        )
    if islands.is_flat and ranks != own:
        raise _core.ConfigError(
            f"parameter {shard.name} is sharded over {len(ranks)} of the {len(own)} ranks of its "
            "node, and the mesh has no dimension for what the others do, allowed: a mesh of all "
            "ranks of the node"
        )


def _check_shard(shard: Shard) -> None:
    flat, name = shard.flat, shard.name
    local = local_of(shard.parameter)
    if hasattr(local, "fsdp_pre_all_gather"):
        raise _core.ConfigError(
            f"parameter {name} is a {type(local).__name__}, which FSDP gathers in a way of its "
            "own, allowed: plain tensors"
        )
    if flat.is_meta:
        raise _core.ConfigError(
            f"parameter {name} has no memory yet, allowed: after to_empty() and the initial values"
        )
    if getattr(shard.record, "pin_memory", False):
        raise _core.ConfigError(
            f"parameter {name} is in pinned memory, to which FSDP copies gradients while others "
            "read them, allowed: CPUOffloadPolicy(pin_memory=False)"
        )
    if shard.parameter.requires_grad and flat.dtype not in (torch.float32, torch.float64):
        raise _core.ConfigError(
            f"parameter {name} is {flat.dtype}, allowed: float32 and float64, with "
            "MixedPrecisionPolicy(param_dtype=torch.bfloat16) for what fully_shard() gathers"
        )


@torch.no_grad()
def _check_means(shards: list[Shard]) -> None:
    """Refuse process groups of gloo whose mean is a sum. Collective inside the node."""
    groups = {id(g): g for g in (s.group.mesh_info.shard_process_group for s in shards)}
    for group in groups.values():
        size = dist.get_world_size(group)
        if dist.get_backend(group) != "gloo" or size == 1:
            continue
        mean = torch.zeros(1)
        try:
            dist.reduce_scatter_tensor(mean, torch.ones(size), dist.ReduceOp.AVG, group)
        except RuntimeError:
            # FSDP then divides by itself.
            continue
        if not math.isclose(mean.item(), 1.0):
            raise _core.ConfigError(
                "the mean of the node's process group is a sum (pytorch#162338), allowed: a newer "
                "torch, or set_force_sum_reduction_for_comms(True)"
            )


def describe_sharded_module(module: torch.nn.Module, shards: list[Shard]) -> str:
    """Return the lines that must be equal on all ranks of all nodes."""
    others = [name for name, p in module.named_parameters() if not p.requires_grad]
    others += [name for name, _ in module.named_buffers()]
    trained = [s.name for s in shards if s.parameter.requires_grad]
    # A state has a piece of this name.
    _core.check_tensor_names(trained, [*others, "python"])
    lines = []
    for s in shards:
        p = s.parameter
        placements = ", ".join(map(str, p.placements))
        lines.append(
            f"{s.name} {list(p.shape)} in shards of {s.numel} by {placements}, {p.dtype} "
            f"{p.requires_grad}"
        )
    lines += [f"buffer {name} {list(b.shape)} {b.dtype}" for name, b in module.named_buffers()]
    lines += [f"part {name or 'itself'}" for name, p in module.named_modules() if is_sharded(p)]
    return "\n".join(lines)
