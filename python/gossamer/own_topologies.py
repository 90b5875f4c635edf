"""Topologies of a user's own, and how options with such topologies reach the engine."""

from __future__ import annotations

import abc
import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from . import _core

__all__ = ["AnyTopology", "OwnTopology", "World", "engine_text", "world_of"]

Edge = tuple[Sequence[int], float]
Arc = tuple[int, int, float]


class World(NamedTuple):
    """The ranks for which a topology makes its rounds."""

    size: int
    """The number of ranks."""
    node_size: int
    """Consecutive ranks that are one node."""


class OwnTopology(abc.ABC):
    """A topology of your own, made of rounds that repeat.

    An instance stands wherever a topology has a name::

        class Pairs(gs.OwnTopology):
            def rounds(self, world):
                even = [((i, i + 1), 0.5) for i in range(0, world.size - 1, 2)]
                odd = [((i, i + 1), 0.5) for i in range(1, world.size - 1, 2)]
                return [even, odd]


        gs.topology(Pairs(), 8).spectrum()
        gs.DecentralizedDataParallel(net, optim_fn, Pairs())
    """

    directed: ClassVar[bool] = False
    """True: arcs may go one way only, and push-sum corrects the averages."""

    @abc.abstractmethod
    def rounds(self, world: World) -> Sequence[Sequence[Edge | Arc]]:
        """Return the rounds of one period, the same ones on all ranks.

        Parameters
        ----------
        world
            The number of ranks, and the size of a node.

        Returns
        -------
        list
            A list of edges and arcs for each round. An edge ``(ranks, weight)`` is a pair or a
            group; each rank keeps `weight` of its own value, and the others share the rest. An arc
            ``(from, to, weight)`` is one message; a rank with arcs keeps the part that it does not
            give away. Ranks that a round does not name sit the round out.
        """


AnyTopology = str | Mapping[str, Any] | OwnTopology


def world_of(session: _core.Session) -> World:
    """Return the world of a session."""
    return World(session.world_size, session.node_size)


def engine_text(options: Any, world: World) -> str:
    """Write options as the engine reads them, with the rounds of a user's own topologies.

    Raises
    ------
    ConfigError
        For an object that is no option, and for rounds that are no lists of edges and arcs.
    """

    def section(value: object) -> dict[str, str]:
        if isinstance(value, OwnTopology):
            name = type(value).__name__
            return {"name": "OwnTopology", "class": name, "rounds": _rounds_text(value, world)}
        raise _core.ConfigError(
            f"{value!r} is no option, allowed: text, numbers, flags, lists, dicts, and instances "
            "of OwnTopology"
        )

    return json.dumps(options, default=section)


def _rounds_text(topology: OwnTopology, world: World) -> str:
    name = type(topology).__name__
    given = topology.rounds(world)
    try:
        listed = [list(items) for items in given]
    except TypeError as error:
        raise _core.ConfigError(
            f"{name}: rounds() has returned {given!r}, allowed: a list of edges for each round"
        ) from error
    rounds = []
    for k, items in enumerate(listed):
        edges: list[dict[str, Any]] = []
        arcs: list[tuple[int, int, float]] = []
        for item in items:
            try:
                _add(item, edges, arcs)
            except (TypeError, ValueError) as error:
                raise _core.ConfigError(
                    f"{name}: round {k}: {item!r} is no edge, allowed: (ranks, weight), or an arc "
                    "(from, to, weight)"
                ) from error
        rounds.append({"edges": edges, "arcs": arcs})
    return json.dumps({"world_size": world.size, "directed": topology.directed, "rounds": rounds})


def _add(item: Any, edges: list[dict[str, Any]], arcs: list[tuple[int, int, float]]) -> None:
    if len(item) == 3:
        source, to, weight = item
        arcs.append((operator.index(source), operator.index(to), float(weight)))
    else:
        ranks, weight = item
        edges.append({"ranks": [operator.index(rank) for rank in ranks], "weight": float(weight)})
