"""decent-dp's topologies: lists of edges, registered by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

from ... import _core
from ...distributed import current_session
from ...own_topologies import AnyTopology, OwnTopology, World
from ...own_topologies import Edge as EngineEdge
from ...topologies import topology as engine_topology

__all__ = ["Edge", "Topology", "TopologyReg"]


@dataclasses.dataclass
class Edge:
    """Ranks that mix with one another.

    Parameters
    ----------
    ranks
        The ranks.
    weight
        The part of its own value that each rank keeps. The others share the rest.
    group
        Ignored: the engine needs no process group.
    """

    ranks: list[int]
    weight: float
    group: Any = None


class Topology:
    """Says which ranks mix in each step; a subclass returns the edges.

    Parameters
    ----------
    local_world_size
        The number of ranks of a node, which must divide the number of all ranks.

    Raises
    ------
    ConfigError
        A ValueError, where a step does not name each rank in exactly one edge, for an impossible
        weight, and where what a rank knows never reaches another.
    """

    def __init__(self, local_world_size: int) -> None:
        session = current_session()
        self._rank = session.rank
        self._world_size = session.world_size
        self._local_world_size = local_world_size
        assert self._world_size % local_world_size == 0, (
            f"{self._world_size} ranks in nodes of {local_world_size}, allowed: nodes of equal size"
        )
        self._n_nodes = self._world_size // local_world_size
        self._all_edges = self._get_topo_edges()
        self._check()
        self._edges = [
            edge for edges in self._all_edges for edge in edges if self._rank in edge.ranks
        ]

    def get_edge(self, step: int) -> Edge:
        """Return this rank's edge in a step."""
        return self._edges[step % len(self._edges)]

    def _get_topo_edges(self) -> list[list[Edge]]:
        """Return the edges of every step of a period, the same ones on all ranks."""
        raise NotImplementedError

    def _check(self) -> None:
        name = type(self).__name__
        if not self._all_edges:
            raise _core.ConfigError(f"{name}: has no steps, allowed: one step or more")
        for step, edges in enumerate(self._all_edges):
            for edge in edges:
                edge.ranks.sort()
            named = sorted(rank for edge in edges for rank in edge.ranks)
            if named != list(range(self._world_size)):
                raise _core.ConfigError(
                    f"{name}: step {step} names the ranks {named}, allowed: each of 0 to "
                    f"{self._world_size - 1} once"
                )
        engine_topology(_from_step(self, 0), self._world_size)


class TopologyReg:
    """The registered topologies."""

    registry: ClassVar[dict[str, type[Topology]]] = {}

    @classmethod
    def register(cls, name: str) -> Callable[[type[Topology]], type[Topology]]:
        """Register the class that follows, a subclass of Topology, under a new name."""

        def add(topology: type[Topology]) -> type[Topology]:
            if name in cls.registry:
                raise _core.ConfigError(f"topology {name}: is registered already")
            if not issubclass(topology, Topology):
                raise _core.ConfigError(
                    f"topology {name}: {topology.__name__} is no subclass of Topology"
                )
            cls.registry[name] = topology
            return topology

        return add


class _EngineTopology(Topology):
    """A topology that the engine has under the same name."""

    _name: ClassVar[str]

    def _get_topo_edges(self) -> list[list[Edge]]:
        made = engine_topology(self._name, self._world_size, node_size=self._local_world_size)
        return [[Edge(ranks, weight) for ranks, weight in edges] for edges in made.rounds()]


@TopologyReg.register("complete")
class CompleteTopology(_EngineTopology):
    """All ranks mix with all others."""

    _name = "complete"


@TopologyReg.register("ring")
class RingTopology(_EngineTopology):
    """Each rank mixes with its two neighbours in turn; for an even number of ranks."""

    _name = "ring"

    def _get_topo_edges(self) -> list[list[Edge]]:
        if self._world_size % 2 != 0:
            raise _core.ConfigError(f"ring: {self._world_size} ranks, allowed: an even number")
        return super()._get_topo_edges()


@TopologyReg.register("one-peer-exp")
class OnePeerExpTopology(_EngineTopology):
    """Each rank mixes with those 1, 2, 4, ... ranks away in turn; for powers of two."""

    _name = "one-peer-exp"


@TopologyReg.register("alternating-exp-ring")
class AlternatingExpRingTopology(_EngineTopology):
    """Nodes mix inside, and with those 1, 2, 4, ... nodes away, in turn; for two or more."""

    _name = "alternating-exp-ring"

    def _get_topo_edges(self) -> list[list[Edge]]:
        if self._n_nodes < 2:
            raise _core.ConfigError(
                f"alternating-exp-ring: {self._n_nodes} node of {self._local_world_size} ranks, "
                "allowed: two nodes or more"
            )
        return super()._get_topo_edges()


def as_launched(topology: Topology) -> AnyTopology:
    """Return the edges in the order in which decent-dp uses them: 1, then 3, 4, 5, ..."""
    # In its second step decent-dp's counter runs ahead by one.
    return {
        "phases": [
            {"until": 1, "topology": _from_step(topology, 1)},
            {"topology": _from_step(topology, 3)},
        ]
    }


def _from_step(topology: Topology, first: int) -> OwnTopology:
    """Return the edges from one step on; messages name the topology's own class."""
    edges = topology._all_edges
    kind = type(type(topology).__name__, (_Rounds,), {})
    made: OwnTopology = kind([edges[(first + k) % len(edges)] for k in range(len(edges))])
    return made


class _Rounds(OwnTopology):
    """Edges of decent-dp's kind as rounds of the engine."""

    def __init__(self, edges: list[list[Edge]]) -> None:
        self._edges = edges

    def rounds(self, world: World) -> list[list[EngineEdge]]:
        return [[(edge.ranks, edge.weight) for edge in edges] for edges in self._edges]
