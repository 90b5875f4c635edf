"""The weights of the ranks' batches in the mean of a step's gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from . import _core

if TYPE_CHECKING:
    from .distributed import Session

__all__ = ["BatchWeights"]


class BatchWeights:
    """What this rank's batch of the next step counts, and the factor that follows from it.

    Parameters
    ----------
    session
        The session whose ranks have the batches.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.are_counted = False
        """Whether ranks may have different numbers of batches now, and this one has one."""
        self.given: float | None = None
        """What backward_weight() has given the next step; None: nothing."""
        self._factor = 1.0
        """This rank's gradients of the step are multiplied by this before the ranks add them up."""

    @property
    def are_due(self) -> bool:
        """Whether the ranks add up their batches when the next step begins."""
        return self.are_counted or self.given is not None

    def count(self, *, has_one: bool, in_mean: bool) -> int:
        """Return how many ranks have a batch for the next step. Collective.

        Each batch has its weight, 1 if none was given, where ``in_mean`` says that gradients are
        averaged.
        """
        weight = float(has_one) if self.given is None or not has_one else self.given
        num, total = self._session.sum([float(has_one), weight])
        if num > 0 and in_mean:
            self.share(weight, total)
        # The step of a rank without a batch counts no more.
        self.are_counted = self.are_counted and has_one
        return int(num)

    def share(self, weight: float, total: float) -> None:
        """Give this rank's gradients the share of its weight; `total`: those of all, added up."""
        if total <= 0.0:
            raise _core.ConfigError(
                "backward_weight(): the weights of all ranks add up to 0, allowed: more than 0 on "
                "one rank"
            )
        # The engine's mean is over all ranks.
        self._factor = self._session.world_size * weight / total

    def scale(self, grad: torch.Tensor) -> None:
        """Multiply a gradient of this rank by the factor of the step."""
        if self._factor != 1.0:
            # A mean over no tokens is no number, and must not become one of the sum.
            own = grad.detach()
            own.mul_(self._factor) if self._factor > 0.0 else own.zero_()

    def end_step(self) -> None:
        """Forget the weight of the step."""
        self.given, self._factor = None, 1.0
