"""Which calls of a wrapper are refused, because training cannot go on with them."""

from __future__ import annotations

import os

__all__ = ["CallGuard"]


class CallGuard:
    """Refuses calls in a forked process, inside a scope, and after a failure or the end."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.is_broken = False
        """Whether a step is under way or has failed, or the engine has ended."""
        self.is_finished = False
        """Whether finish() has ended the training."""
        self.scope = ""
        """The scope in which the model is, as "write_parameters()"; empty: none."""

    def check(self, call: str) -> None:
        """Refuse a call that training does not allow now.

        Raises
        ------
        RuntimeError
            With what to do about it.
        """
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"{call} in a process that was forked from the one that trains; start it with "
                "the method 'spawn', or let it only load data"
            )
        if self.scope:
            raise RuntimeError(f"{call} inside the scope of {self.scope}; let the scope end first")
        if self.is_broken:
            raise RuntimeError(
                f"{call} after a step that has failed half way, or after finish(); training cannot "
                "go on"
            )
