"""The mean of all ranks' models, in the place of a rank's own model for a while."""

from __future__ import annotations

import torch

from . import _core
from .buffers import SavedBuffers
from .checks import average_tensors

__all__ = ["GlobalAverage"]


class GlobalAverage:
    """What global_average() does: take() the mean, and leave() it.

    Parameters
    ----------
    engine
        The engine, which has the parameters after the first step.
    module
        The module.
    buffers
        Whether buffers take part.
    """

    def __init__(self, engine: _core.Engine, module: torch.nn.Module, *, buffers: bool) -> None:
        self._engine = engine
        self._saved = SavedBuffers(module) if buffers else None
        self._is_taken = False

    def take(self, session: _core.Session) -> float:
        """Become the mean, and return this rank's distance from it. Collective.

        Parameters
        ----------
        session
            The session over which buffers are averaged.
        """
        has_started = self._engine.has_started
        if has_started:
            # Before any other operation: asynchronous ranks may wait for this rank's messages.
            self._engine.drain()
        if self._saved is not None:
            average_tensors(session, self._saved.averaged)
        distance = self._engine.average() if has_started else 0.0
        self._is_taken = has_started
        return distance

    def undo(self) -> None:
        """Give this rank's own values back. take() may have failed half way."""
        if self._is_taken:
            self._engine.end_average(keep=False)
            self._is_taken = False
        if self._saved is not None:
            self._saved.restore()

    def leave(self, *, keep: bool) -> None:
        """Have this rank's own model back, or keep the mean."""
        if not keep:
            self.undo()
        elif self._is_taken:
            self._engine.end_average(keep=True)
