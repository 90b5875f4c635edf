"""Simulations of many ranks, and plans for a cluster, without a session."""

from __future__ import annotations

import json
from typing import Any

from . import _core
from .own_topologies import World, engine_text

__all__ = ["plan", "simulate"]


def simulate(
    *, world_size: int, local_world_size: int = 0, threads: int = 0, **options: Any
) -> dict[str, Any]:
    """Mix or train many virtual ranks in this process.

    Other Python threads go on meanwhile.

    Parameters
    ----------
    world_size
        The number of virtual ranks.
    local_world_size
        Ranks on each node; 0: all of them.
    threads
        Threads that share the work; 0: all cores. The figures do not depend on them.
    **options
        What ``gossamer simulate`` takes: kind ("consensus" or "sgd"), topology, codec, rounds, dim
        and seed; for "sgd" also algorithm, optimizer and problem. A name may have options of its
        own, as ``{"name": "base-k", "k": 2}``; the topology may be an OwnTopology.

    Returns
    -------
    dict
        The figures, with the names of ``gossamer simulate --json``. "points" is a dict of columns:
        ``pandas.DataFrame(result["points"])`` is a table.

    Raises
    ------
    ConfigError
        For what cannot be simulated.
    """
    if not 0 <= threads <= 1024:
        raise _core.ConfigError(f"threads: {threads} is out of range, allowed: from 0 to 1024")
    keys = {"world_size": world_size, "local_world_size": local_world_size} | options
    text = engine_text(keys, World(world_size, local_world_size or world_size))
    result: dict[str, Any] = json.loads(_core.simulate(text, threads))
    points = result["points"]
    result["points"] = {key: [point[key] for point in points] for key in points[0]}
    return result


def plan(*, world_size: int, local_world_size: int = 1, **options: Any) -> dict[str, Any]:
    """Compare algorithms, topologies, codecs and periods for a cluster, and advise one of them.

    Parameters
    ----------
    world_size
        The number of ranks.
    local_world_size
        Ranks on each node.
    **options
        The options of ``gossamer plan``, as compute_ms for ``--compute-ms``. Give model_bytes, or
        the list bucket_bytes; measure_compute() returns model_bytes and compute_ms of a model.
        links is the path of a file, or a dict as in such a file. algorithm is a list of names, and
        of dicts as ``{"name": "outer", "every": 20}``: the plan then compares these alone.

    Returns
    -------
    dict
        What ``gossamer plan --json`` prints: "rows", the best first, "recommendation", "warnings",
        the lines of a configuration as "yaml", the same as a dict in "options", for the options of
        DecentralizedDataParallel, and what the plan has "assumed".

    Raises
    ------
    ConfigError
        For what cannot be planned.
    """
    keys = {"world_size": world_size, "local_world_size": local_world_size} | options
    text = engine_text(keys, World(world_size, local_world_size))
    result: dict[str, Any] = json.loads(_core.plan(text))
    return result
