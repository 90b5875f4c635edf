"""What a wrapped module asks where ranks may be lost, for ranks that stay the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

__all__ = ["FixedRanks"]

Result = TypeVar("Result")


class FixedRanks:
    """What a wrapped module asks where ranks may be lost. Here the ranks stay the same.

    Protocol: enter() before the first step; begin_step() and after_step() in every step; end()
    after the last step. together() runs collective work between two steps.
    """

    @property
    def has_newcomers(self) -> bool:
        """Whether a rank joins and has not begun its first step, or this rank lags behind."""
        return False

    @property
    def is_fresh(self) -> bool:
        """Whether this rank has joined, and has made no step with its own loop since then."""
        return False

    def enter(self) -> None:
        """Begin, or join the others. Collective on its first call; does nothing after that."""

    def check_entered(self) -> None:
        """Refuse a backward pass whose forward pass has not given this rank the others' model."""

    def begin_call(self, call: str) -> None:
        """Begin, before a collective call that ranks do not make with one that has just joined."""

    def begin_step(self) -> None:
        """Let processes in that ask to join."""

    def after_step(self) -> None:
        """Go on with the ranks that are left. The step may still be uncommitted."""

    def together(
        self,
        call: Mapping[str, Any] | str,
        work: Callable[[], Result],
        undo: Callable[[], None] = lambda: None,
    ) -> Result | None:
        """Return what collective work returns."""
        return work()

    def attempt(self, work: Callable[[], Result]) -> Result:
        """Return what collective work returns. PeerLost: on all ranks of this node."""
        return work()

    def end(self, work: Callable[[], None]) -> None:
        """Do the last work, which waits for the exchanges under way."""
        work()
