"""What a rank measures between two records of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from . import _core

__all__ = ["Window", "means_of", "totals_of"]


class Window:
    """What this rank has measured since its last record."""

    def __init__(self) -> None:
        self.steps = self.samples = 0
        self.seconds = 0.0
        self.values: dict[str, list[torch.Tensor | float]] = {}

    def add(self, values: Mapping[str, torch.Tensor | float]) -> None:
        """Keep one value under each name.

        Raises
        ------
        ConfigError
            For a tensor of several values.
        """
        for name, value in values.items():
            if not isinstance(value, torch.Tensor):
                own: torch.Tensor | float = float(value)
            elif value.numel() == 1:
                own = value.detach()
            else:
                raise _core.ConfigError(
                    f"log(): {name} has {value.numel()} values, allowed: one, as of a mean()"
                )
            self.values.setdefault(name, []).append(own)


def totals_of(values: Mapping[str, list[torch.Tensor | float]]) -> dict[str, list[float]]:
    """Return the sum of the finite numbers under each name, and their number."""
    totals = {}
    for name, given in values.items():
        tensors = [v.detach().reshape(()) for v in given if isinstance(v, torch.Tensor)]
        numbers = [float(v) for v in given if not isinstance(v, torch.Tensor)]
        # On a GPU, one wait for all of them.
        numbers += torch.stack(tensors).tolist() if tensors else []
        finite = [number for number in numbers if math.isfinite(number)]
        totals[name] = [math.fsum(finite), len(finite)]
    return totals


def means_of(ranks: list[dict[str, list[float]]]) -> dict[str, float | None]:
    """Return the mean of all ranks' finite numbers under each name; None: there is none."""
    means: dict[str, float | None] = {}
    for name in dict.fromkeys(name for rank in ranks for name in rank):
        total, count = map(sum, zip(*(rank[name] for rank in ranks if name in rank), strict=True))
        means[name] = total / count if count > 0 else None
    return means
