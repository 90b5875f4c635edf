"""What a rank owes to the launcher that has started it (gossamer.launch)."""

from __future__ import annotations

import ctypes
import os
import signal

__all__ = ["LAUNCHER", "end_with_launcher"]

LAUNCHER = "GOSSAMER_LAUNCHER"
"""The variable that names the launcher's process."""

_PR_SET_PDEATHSIG = 1


def end_with_launcher() -> None:
    """Have this process killed when the launcher that has started it dies."""
    # Processes that this one starts are not the launcher's.
    launcher = os.environ.pop(LAUNCHER, "")
    if not launcher.isdigit():
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(launcher):
        os._exit(128 + signal.SIGKILL)
