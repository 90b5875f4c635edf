"""Topologies to look at: who mixes with whom, and how fast."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core
from .own_topologies import AnyTopology, World, engine_text

__all__ = ["Topology", "topology", "topology_names"]


class Plot:
    """A picture that a notebook shows."""

    def __init__(self, svg: str) -> None:
        self.svg = svg
        """The picture's text."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture into an SVG file."""
        Path(path).write_text(self.svg, encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.svg

    def __str__(self) -> str:
        return self.svg


class Topology:
    """A topology for a number of ranks. Make one with topology()."""

    def __init__(self, core: _core.WorldTopology) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """The name, as "one-peer-exp"."""
        return self._core.name

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self._core.world_size

    @property
    def period(self) -> int | None:
        """Rounds after which the rounds repeat; None: they never do."""
        return self._core.period

    def rounds(self, num_rounds: int | None = None) -> list[list[tuple[list[int], float]]]:
        """Return the edges of the first rounds: ranks, and the weight that a rank keeps.

        Parameters
        ----------
        num_rounds
            None: one period.
        """
        if num_rounds is None:
            num_rounds = self.period or 1
        return [self._core.round(k)[0] for k in range(num_rounds)]

    def matrix(self, k: int = 0) -> npt.NDArray[np.float64]:
        """Return the mixing matrix of round `k`: row i has the weights with which rank i mixes."""
        edges, arcs, node_size = self._core.round(k)
        size = self.world_size // node_size
        matrix = np.zeros((size, size))
        for ranks, weight in edges:
            if len(ranks) == 1 and any(to == ranks[0] for _, to, _ in arcs):
                continue
            share = (1.0 - weight) / max(1, len(ranks) - 1)
            for i in ranks:
                for j in ranks:
                    matrix[i, j] = weight if i == j else share
        for source, to, weight in arcs:
            matrix[to, source] = weight
        if node_size == 1:
            return matrix
        return np.kron(matrix, np.full((node_size, node_size), 1.0 / node_size))

    def rounds_to(self, factor: float = 1e-3) -> int | None:
        """Return after how many rounds the distance from the mean has shrunk by `factor`."""
        return self._core.rounds_to(factor)

    def spectrum(self) -> dict[str, float | None]:
        """Return how fast the rounds average, with the names of ``gossamer topology show --json``.

        P is the product of the mixing matrices of a period, and J the matrix that averages. None
        stands where the engine does not know a figure.

        Returns
        -------
        dict
            - spectral_gap: 1 - r, where r is the spectral radius of P - J. For a symmetric P, r is
              the size of the second largest eigenvalue.
            - consensus_rate: the factor per round by which the distance from the mean shrinks in
              the long run.
            - exact_after: the rounds after which all ranks have the exact mean.
            - rounds_to_1e-3: the rounds after which the distance has shrunk to a thousandth.
            - rounds_to_1e-3_estimated: whether that number is an estimate, as in large worlds.
        """
        gap, rate, exact, count = self._core.speed()
        return {
            "spectral_gap": gap,
            "consensus_rate": rate,
            "exact_after": exact,
            "rounds_to_1e-3": None if count is None else count[0],
            "rounds_to_1e-3_estimated": count is not None and count[1],
        }

    def plot(self, k: int | None = None) -> Plot:
        """Draw the ranks of a round on a circle, and who mixes with whom.

        Parameters
        ----------
        k
            The round; None: all rounds of a period, 16 at most.

        Raises
        ------
        ConfigError
            For more than 512 ranks, of which nothing could be seen.
        """
        return Plot(self._core.picture(k))

    def __repr__(self) -> str:
        return f"<topology {self.name} of {self.world_size} ranks>"


def topology(name: AnyTopology, n: int, *, node_size: int = 0, **options: Any) -> Topology:
    """Make a topology.

    Parameters
    ----------
    name
        One of topology_names(), a dict as ``{"alternate": ["ring", "complete"]}``, or an
        OwnTopology.
    n
        The number of ranks.
    node_size
        Consecutive ranks that are one node; 0: all.
    **options
        The topology's own options, as k=2 for "base-k".

    Raises
    ------
    ConfigError
        For an unknown name or option, for a number of ranks that is impossible, and for rounds of
        your own that break a rule.
    """
    section = {"name": name} | options if isinstance(name, str) else name
    if section is name and options:
        raise _core.ConfigError(
            f"options stand beside {name!r}, allowed: options beside a name alone"
        )
    text = engine_text({"topology": section}, World(n, node_size or n))
    return Topology(_core.make_topology(text, n, node_size))


def topology_names() -> list[str]:
    """Return the names of all topologies."""
    return _core.topology_names()
