"""What a wrapper measures over all of its steps."""

from __future__ import annotations

import time
from collections.abc import Mapping

from . import _core

__all__ = ["StepSums"]


class StepSums:
    """Seconds of forward and backward passes, and the sums of engines that were replaced."""

    def __init__(self) -> None:
        self._seconds = {"forward_s": 0.0, "backward_s": 0.0}
        self._earlier: dict[str, float] = {}
        self._backward_begin = 0.0
        self._backward_ns = 0

    def of(self, engine: _core.Engine) -> dict[str, float]:
        """Return the sums of all engines, of which `engine` is the last one."""
        own = engine.metrics() | self._seconds
        return {key: value + self._earlier.get(key, 0) for key, value in own.items()}

    def add(self, sums: Mapping[str, float]) -> None:
        """Count in what was summed up before the present engine began."""
        for key, value in sums.items():
            self._earlier[key] = self._earlier.get(key, 0.0) + value

    def add_forward(self, begin: float) -> None:
        """Count a forward pass that began at this time, and ends now."""
        self._seconds["forward_s"] += time.perf_counter() - begin

    def begin_backward(self) -> None:
        """Note that a backward pass begins."""
        self._backward_begin = time.perf_counter()

    def add_backward(self) -> None:
        """Count the backward pass that has begun, until now."""
        self._seconds["backward_s"] += time.perf_counter() - self._backward_begin

    def end_backward(self) -> None:
        """Count the backward pass of the step, if it had one."""
        if self._backward_begin > 0.0:
            self.add_backward()
            self._backward_begin = 0.0

    def begin_step(self, engine: _core.Engine) -> None:
        """Note when the step begins in the engine's timeline."""
        self._backward_ns = engine.now_ns()

    def record_step(self, engine: _core.Engine) -> None:
        """Draw the step's backward pass into the engine's timeline."""
        engine.record("backward", self._backward_ns)
