"""What python -m gossamer --selftest checks: that an installation trains as it should.

Four ranks that are threads, or the processes that a launcher has started, train a tiny model, whose
end PyTorch alone knows as well.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from . import _core
from .distributed import current_session, initialize_dist, run_threads
from .topologies import topology

__all__ = ["Check", "main", "run_checks"]

_NUM_THREADS = 4
_TIMEOUT_S = 60.0


class Check(NamedTuple):
    """A check by all ranks together."""

    name: str
    work: Callable[[], None]
    """Raises an exception if something is wrong. Every rank calls it, in a session."""


def main() -> int:
    """Run all checks, print a line for each, and return the exit code."""
    try:
        rank, size = initialize_dist(timeout_s=_TIMEOUT_S)
    except Exception as error:
        print(f"FAILED  ranks meet: {error}")
        return 1
    if rank == 0:
        print("\n".join(_found(size)), flush=True)
    checks = [
        Check("topologies mix", check_topologies),
        Check("messages arrive", check_messages),
    ]
    if _has_torch():
        from .selftest_training import ALONE, TOGETHER

        checks += TOGETHER if size > 1 else ALONE + TOGETHER
    return run_checks(checks, size)


def run_checks(checks: list[Check], size: int) -> int:
    """Print whether each check is ok, and return the exit code.

    Parameters
    ----------
    checks
        What all ranks do, in this order.
    size
        The number of processes; with one, the ranks are threads.
    """
    is_first = size == 1 or current_session().rank == 0
    num_failed = 0
    for check in checks:
        reason = _reason_among_threads(check) if size == 1 else _reason_among_processes(check)
        num_failed += reason != ""
        if is_first:
            print(
                f"FAILED  {check.name}: {reason}" if reason else f"ok      {check.name}", flush=True
            )
    if is_first:
        print(f"{num_failed} of {len(checks)} checks failed" if num_failed else "all is well")
    return 1 if num_failed else 0


def check_topologies() -> None:
    """Compare a round's product with the mean, where it must be the mean."""
    for name, size in (("complete", 5), ("one-peer-exp", 8), ("base-k", 6)):
        found = topology(name, size)
        product = np.eye(size)
        for k in range(found.period or 1):
            product = found.matrix(k) @ product
        expect_small(f"{name}: distance from the mean", np.abs(product - 1 / size).max(), 1e-9)


def check_messages() -> None:
    """Send texts and numbers between all ranks."""
    session = current_session()
    texts = session.all_gather(f"rank {session.rank}")
    if texts != [f"rank {r}" for r in range(session.world_size)]:
        raise AssertionError(f"the texts of all ranks are {texts}")
    total = session.sum([float(session.rank)])[0]
    expected = session.world_size * (session.world_size - 1) / 2
    expect_small("error of a sum over ranks", abs(total - expected), 0.0)


def expect_small(what: str, value: float, limit: float) -> None:
    """Raise an AssertionError for a value above a limit, or none."""
    if not value <= limit:
        raise AssertionError(f"{what}: {value:.3g}, at most {limit:.3g} expected")


def _found(size: int) -> list[str]:
    torch, gpus = (
        "not installed: checks of training are left out",
        "not looked for: PyTorch is not installed",
    )
    if _has_torch():
        import torch as found

        torch = found.__version__
        gpus = "none that PyTorch sees"
        if found.cuda.is_available():
            gpus = f"{found.cuda.device_count()} for PyTorch, {_core.num_gpus()} for gossamer"
            gpus += f"; NCCL {_core.nccl_version()}"
    ranks = f"{size} processes" if size > 1 else f"{_NUM_THREADS} threads"
    return [
        f"gossamer {_core.version()}",
        f"backends {', '.join(_core.backends())}",
        f"MPI      {_core.mpi_version() or 'not built in'}",
        f"PyTorch  {torch}",
        f"GPUs     {gpus}",
        f"ranks    {ranks}",
    ]


def _has_torch() -> bool:
    try:
        return importlib.util.find_spec("torch") is not None
    except ValueError:
        return False


def _reason_among_threads(check: Check) -> str:
    try:
        run_threads(_NUM_THREADS, check.work, timeout_s=_TIMEOUT_S)
    except Exception as error:
        return _text_of(error)
    return ""


def _reason_among_processes(check: Check) -> str:
    try:
        check.work()
        own = ""
    except _core.CommError:
        # The other ranks cannot be asked any more.
        raise
    except Exception as error:
        own = f"rank {current_session().rank}: {_text_of(error)}"
    return next((text for text in current_session().all_gather(own) if text), "")


def _text_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
