"""Starts the ranks of a script on this machine, and does not end them with one another.

::

    python -m gossamer.launch -n 4 train.py --epochs 3
    python -m gossamer.launch -n 1 --join 127.0.0.1:29400 train.py --epochs 3

On several hosts each runs the launcher once, with the same secret in GOSSAMER_SECRET::

    python -m gossamer.launch -n 4 --hosts 2 --host 0 --rendezvous node0:29400 train.py
    python -m gossamer.launch -n 4 --hosts 2 --host 1 --rendezvous node0:29400 train.py

The launcher serves the place where the ranks meet, so the run outlives every rank. Ranks that call
initialize_dist(survive=True) go on when others die. A rank ends when its launcher is killed.

Signals for the launcher go to its ranks. A second Ctrl-C kills them.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from . import _core
from .rendezvous import serve

__all__ = ["main"]

_LOOPBACK = "127.0.0.1"
_PAUSE_S = 0.05
_TIMEOUT_S = 300.0
_LOST_OTHERS = 74
"""The exit code of a rank that has no fault of its own."""
_PR_SET_PDEATHSIG = 1
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the ranks, and wait for them.

    Returns
    -------
    int
        0 if a rank has trained to the end. Else the code of the last rank that has not ended
        because it had lost the others.
    """
    options = _parse(arguments)
    try:
        listening, variables = _meeting(options)
    except (_core.ConfigError, _core.CommError) as error:
        print(f"gossamer.launch: {error}", file=sys.stderr)
        return _LOST_OTHERS if isinstance(error, _core.CommError) else 2
    ranks = _Ranks()
    threads = max(1, len(os.sched_getaffinity(0)) // options.n)
    given = {"OMP_NUM_THREADS": str(threads), **os.environ}
    # Ranks that begin a run join none.
    given.pop("GOSSAMER_JOIN", None)
    command = [sys.executable, *(["-m"] if options.module else []), options.script]
    for local_rank in range(options.n):
        environment = {**given, **variables, "LOCAL_RANK": str(local_rank)}
        if not options.join:
            environment["GOSSAMER_RANK"] = str(options.host * options.n + local_rank)
        ranks.start([*command, *options.arguments], environment)
    # Ranks wait for the store meanwhile. No process is forked from one that has its threads.
    store = serve(*listening, _TIMEOUT_S) if listening is not None else None
    code = ranks.wait()
    del store  # It serves the ranks until here.
    return code


class _Ranks:
    """The processes of this machine's ranks, and the signals for them."""

    def __init__(self) -> None:
        self._running: dict[subprocess.Popen[bytes], str] = {}
        self._codes: list[int] = []
        self._signals: list[int] = []
        """Signals that have come, and that the ranks have not got yet."""
        self._is_interrupted = False
        self._prepare = _end_with_this_process()
        for number in (*_ENDING, signal.SIGUSR1):
            # nohup, and a shell that starts a job in the background, have signals ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda number, _: self._signals.append(number))
        # A process that ignores SIGCHLD gets no exit codes of its children.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def start(self, command: list[str], environment: dict[str, str]) -> None:
        """Start a rank, unless a signal has come that ends them."""
        ending = [number for number in self._signals if number in _ENDING]
        if ending:
            self._codes.append(128 + ending[0])
            return
        process = subprocess.Popen(command, env=environment, preexec_fn=self._prepare)
        rank = environment.get("GOSSAMER_RANK")
        self._running[process] = f"process {process.pid}" if rank is None else f"rank {rank}"

    def wait(self) -> int:
        """Return the code of all ranks together."""
        while self._running:
            while self._signals:
                self._pass_on(self._signals.pop(0))
            for process in [p for p in self._running if p.poll() is not None]:
                self._note_end(process)
            time.sleep(_PAUSE_S)
        own = [code for code in self._codes if code != _LOST_OTHERS]
        return 0 if 0 in own else (own or self._codes)[-1]

    def _pass_on(self, number: int) -> None:
        is_first = number != signal.SIGINT or not self._is_interrupted
        self._is_interrupted = self._is_interrupted or number == signal.SIGINT
        if number == signal.SIGINT and is_first and _terminal_tells_ranks():
            return
        for process in self._running:
            process.send_signal(number if is_first else signal.SIGKILL)

    def _note_end(self, process: subprocess.Popen[bytes]) -> None:
        name, code = self._running.pop(process), process.returncode
        self._codes.append(128 - code if code < 0 else code)
        if code == 0:
            return
        end = f"{name} has ended with code {code}"
        if code < 0:
            end = f"signal {-code} ({signal.strsignal(-code)}) has ended {name}"
        left = f"; {len(self._running)} run on" if self._running else ""
        print(f"gossamer.launch: {end}{left}", file=sys.stderr, flush=True)


def _end_with_this_process() -> Callable[[], None]:
    """Return what a rank does before its program begins: Linux kills it when this process dies."""
    launcher, prctl = os.getpid(), ctypes.CDLL(None).prctl

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != launcher:
            os._exit(128 + signal.SIGKILL)

    return prepare


def _terminal_tells_ranks() -> bool:
    """Whether Ctrl-C comes from a terminal, which sends it to the ranks as well."""
    with contextlib.suppress(OSError), open("/dev/tty", "rb", buffering=0) as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gossamer.launch",
        description="Start the ranks of a script on this machine. Ranks do not end one another.",
    )
    parser.add_argument("-n", type=int, required=True, help="ranks on this machine")
    parser.add_argument("--hosts", type=int, default=1, help="machines; each starts as many ranks")
    parser.add_argument("--host", type=int, default=0, help="this machine's number, from 0 on")
    parser.add_argument(
        "--rendezvous",
        default="",
        help="where the ranks meet: HOST:PORT of the machine 0, file:FOLDER, or etcd:ADDRESSES; "
        "needed with several machines",
    )
    parser.add_argument("--join", default="", help="where a run goes on that these ranks join")
    parser.add_argument("-m", dest="module", action="store_true", help="the script is a module")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if options.n < 1 or options.hosts < 1:
        parser.error("-n and --hosts must be 1 or more")
    if not 0 <= options.host < options.hosts:
        parser.error(f"--host is {options.host}, allowed: 0 to {options.hosts - 1}")
    if options.hosts > 1 and not options.rendezvous:
        parser.error("--hosts needs --rendezvous, where the machines' ranks meet")
    if options.join and (options.rendezvous or options.hosts > 1):
        parser.error("--join adds ranks to a run, allowed: without --rendezvous and --hosts")
    return options


def _meeting(options: argparse.Namespace) -> tuple[tuple[str, int, int] | None, dict[str, str]]:
    """Say where the ranks meet.

    Returns
    -------
    tuple
        Host, socket and port of the store, if this process serves it; and the ranks' variables.
    """
    if options.join:
        return None, {"GOSSAMER_JOIN": options.join}
    place, size = options.rendezvous, options.n * options.hosts
    listening: tuple[str, int, int] | None = None
    if place:
        settings = _core.StartSettings()
        settings.rendezvous, settings.world_size = place, size
        settings.timeout_s = _TIMEOUT_S
        # The ranks say whether they have a secret, and whether they go on without one another.
        settings.security, settings.survives = "none", True
        start = _core.plan_start(settings)
        own = start.listen()
        listening = None if own is None else (start.host, *own)
    else:
        own_socket = socket.create_server((_LOOPBACK, 0), backlog=1024)
        port = own_socket.getsockname()[1]
        listening = (_LOOPBACK, own_socket.detach(), port)
        place = f"{_LOOPBACK}:{port}"
    if options.host == 0:
        print(f"gossamer.launch: others join with --join {place}", file=sys.stderr, flush=True)
    return listening, {"GOSSAMER_RENDEZVOUS": place, "GOSSAMER_WORLD_SIZE": str(size)}


if __name__ == "__main__":
    sys.exit(main())
