"""Pictures of rounds, as SVG."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from . import _core

__all__ = ["Plot", "plot_rounds"]

Edges = Sequence[tuple[Sequence[int], float]]
Arcs = Sequence[tuple[int, int, float]]

_MOST_RANKS = 512
_MOST_NUMBERED = 64
_COLUMNS = 4
_PANEL = 240.0
_TITLE = 36.0
_RADIUS = 92.0
_INK = "#333333"
# Paul Tol's "bright" scheme: distinguishable with any kind of colour vision.
_COLORS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#ccbb44", "#66ccee")


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


def plot_rounds(num_ranks: int, title: str, rounds: Mapping[int, tuple[Edges, Arcs]]) -> Plot:
    """Draw rounds side by side: pairs as lines, groups as shapes, arcs as arrows.

    Parameters
    ----------
    num_ranks
        The number of ranks, which stand on a circle.
    title
        Stands above the rounds.
    rounds
        The edges and arcs of each round, by its number.
    """
    if num_ranks > _MOST_RANKS:
        raise _core.ConfigError(
            f"nothing could be seen of {num_ranks} ranks, allowed: up to {_MOST_RANKS}"
        )
    width = max(2, min(len(rounds), _COLUMNS)) * _PANEL
    height = _TITLE + math.ceil(len(rounds) / _COLUMNS) * _PANEL
    svg = ElementTree.Element(
        "svg",
        xmlns="http://www.w3.org/2000/svg",
        width=_number(width),
        height=_number(height),
        viewBox=f"0 0 {_number(width)} {_number(height)}",
    )
    svg.set("font-family", "sans-serif")
    ElementTree.SubElement(svg, "title").text = title
    ElementTree.SubElement(svg, "rect", width="100%", height="100%", fill="white")
    _text(svg, (12.0, 24.0), title, 15.0)
    for place, (k, (edges, arcs)) in enumerate(rounds.items()):
        left = place % _COLUMNS * _PANEL
        top = _TITLE + place // _COLUMNS * _PANEL
        panel = ElementTree.SubElement(svg, "g", transform=f"translate({left:g} {top:g})")
        panel.set("class", "round")
        _text(panel, (12.0, 10.0), f"round {k}", 11.0)
        _Panel(panel, num_ranks).draw(edges, arcs)
    return Plot(ElementTree.tostring(svg, encoding="unicode"))


class _Panel:
    """One round in its square."""

    def __init__(self, parent: ElementTree.Element, num_ranks: int) -> None:
        self.parent = parent
        centre = (_PANEL / 2, _PANEL / 2 + 6)
        angles = [2 * math.pi * rank / num_ranks - math.pi / 2 for rank in range(num_ranks)]
        self.places = [
            (centre[0] + _RADIUS * math.cos(a), centre[1] + _RADIUS * math.sin(a)) for a in angles
        ]
        self.dot = min(9.0, max(1.0, 1.2 * _RADIUS * math.pi / num_ranks))
        self.busy: set[int] = set()

    def draw(self, edges: Edges, arcs: Arcs) -> None:
        meeting = [ranks for ranks, _ in edges if len(ranks) > 1]
        for turn, ranks in enumerate(meeting):
            self._edge(ranks, _COLORS[turn % len(_COLORS)])
        for source, to, _ in arcs:
            if source != to:
                self._arrow(source, to, _COLORS[source % len(_COLORS)])
        for rank in range(len(self.places)):
            self._rank(rank)

    def _edge(self, ranks: Sequence[int], color: str) -> None:
        self.busy.update(ranks)
        points = " ".join(f"{_number(x)},{_number(y)}" for x, y in (self.places[r] for r in ranks))
        edge = ElementTree.SubElement(self.parent, "polygon", points=points, stroke=color)
        edge.set("class", "edge")
        edge.set("stroke-width", _number(min(2.0, self.dot)))
        edge.set("fill", color)
        edge.set("fill-opacity", "0.25")

    def _arrow(self, source: int, to: int, color: str) -> None:
        self.busy.update((source, to))
        (x0, y0), (x1, y1) = self.places[source], self.places[to]
        length = math.hypot(x1 - x0, y1 - y0)
        along = ((x1 - x0) / length, (y1 - y0) / length)
        # A little to the right of the straight line, so that both directions can be seen.
        aside = (-along[1] * 0.3 * self.dot, along[0] * 0.3 * self.dot)
        tip = (x1 - along[0] * self.dot + aside[0], y1 - along[1] * self.dot + aside[1])
        head = min(7.0, max(2.0, 0.8 * self.dot))
        back = (tip[0] - along[0] * head, tip[1] - along[1] * head)
        half = (along[1] * head / 2, along[0] * head / 2)
        path = (
            f"M {_pair(x0 + aside[0], y0 + aside[1])} L {_pair(*tip)} "
            f"L {_pair(back[0] - half[0], back[1] + half[1])} "
            f"L {_pair(back[0] + half[0], back[1] - half[1])} L {_pair(*tip)}"
        )
        arrow = ElementTree.SubElement(self.parent, "path", d=path, stroke=color, fill=color)
        arrow.set("class", "arc")
        arrow.set("stroke-width", _number(min(1.4, self.dot)))

    def _rank(self, rank: int) -> None:
        x, y = self.places[rank]
        is_busy = rank in self.busy
        circle = ElementTree.SubElement(
            self.parent, "circle", cx=_number(x), cy=_number(y), r=_number(self.dot), stroke=_INK
        )
        circle.set("class", "rank")
        circle.set("fill", _INK if is_busy else "white")
        if len(self.places) > _MOST_NUMBERED or self.dot < 5.0:
            return
        number = _text(self.parent, (x, y), str(rank), self.dot, "white" if is_busy else _INK)
        number.set("text-anchor", "middle")
        number.set("dominant-baseline", "central")


def _text(
    parent: ElementTree.Element,
    at: tuple[float, float],
    words: str,
    size: float,
    color: str = _INK,
) -> ElementTree.Element:
    text = ElementTree.SubElement(parent, "text", x=_number(at[0]), y=_number(at[1]), fill=color)
    text.set("font-size", _number(size))
    text.text = words
    return text


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _pair(x: float, y: float) -> str:
    return f"{_number(x)} {_number(y)}"
