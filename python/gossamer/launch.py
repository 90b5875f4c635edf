"""Starts the ranks of a script on this machine, and does not end them with one another.

::

    python -m gossamer.launch -n 4 train.py --epochs 3
    python -m gossamer.launch -n 1 --join 127.0.0.1:29400 train.py --epochs 3

On several hosts each runs the launcher once, with the same secret in GOSSAMER_SECRET::

    python -m gossamer.launch -n 4 --hosts 2 --host 0 --rendezvous node0:29400 train.py
    python -m gossamer.launch -n 4 --hosts 2 --host 1 --rendezvous node0:29400 train.py

The launcher serves the place where the ranks meet, so the run outlives every rank. Ranks that call
initialize_dist(survive=True) go on when others die. A rank ends when its launcher is killed.
"""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from .launched import LAUNCHER

__all__ = ["main"]

_LOOPBACK = "127.0.0.1"
_PAUSE_S = 0.05


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the ranks, and wait for them.

    Returns
    -------
    int
        0 if a rank has trained to the end, else the code of the first rank that has failed.
    """
    options = _parse(arguments)
    store, variables = _meeting(options)
    ranks = _Ranks()
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(signal_number, lambda number, _: ranks.pass_on(number))
    command = [sys.executable, *(["-m"] if options.module else []), options.script]
    threads = max(1, len(os.sched_getaffinity(0)) // options.n)
    for local_rank in range(options.n):
        environment = {
            "OMP_NUM_THREADS": str(threads),
            **os.environ,
            **variables,
            LAUNCHER: str(os.getpid()),
            "LOCAL_RANK": str(local_rank),
        }
        if not options.join:
            environment["GOSSAMER_RANK"] = str(options.host * options.n + local_rank)
        ranks.start([*command, *options.arguments], environment)
    code = ranks.wait()
    del store  # It serves the ranks until here.
    return code


class _Ranks:
    """The processes of this machine's ranks."""

    def __init__(self) -> None:
        self._running: dict[subprocess.Popen[bytes], str] = {}
        self._codes: list[int] = []
        self._passed_on: set[int] = set()

    def start(self, command: list[str], environment: dict[str, str]) -> None:
        process = subprocess.Popen(command, env=environment)
        rank = environment.get("GOSSAMER_RANK")
        self._running[process] = f"process {process.pid}" if rank is None else f"rank {rank}"

    def pass_on(self, signal_number: int) -> None:
        """Send a signal to all ranks; a second interruption ends them."""
        is_second = signal_number == signal.SIGINT and signal_number in self._passed_on
        self._passed_on.add(signal_number)
        for process in self._running:
            process.send_signal(signal.SIGKILL if is_second else signal_number)

    def wait(self) -> int:
        while self._running:
            for process in [p for p in self._running if p.poll() is not None]:
                name, code = self._running.pop(process), process.returncode
                self._codes.append(128 - code if code < 0 else code)
                if code != 0:
                    how = (
                        f"was ended by {signal.Signals(-code).name}"
                        if code < 0
                        else f"has ended with code {code}"
                    )
                    left = f"; {len(self._running)} run on" if self._running else ""
                    print(f"gossamer.launch: {name} {how}{left}", file=sys.stderr, flush=True)
            time.sleep(_PAUSE_S)
        return 0 if 0 in self._codes else self._codes[0]


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


def _meeting(options: argparse.Namespace) -> tuple[Any, dict[str, str]]:
    """Return the store that this process serves, and the variables that say where ranks meet."""
    if options.join:
        return None, {"GOSSAMER_JOIN": options.join}
    place, store = options.rendezvous, None
    if not place:
        store = _serve(_LOOPBACK, 0)
        place = f"{_LOOPBACK}:{store.port}"
        print(f"gossamer.launch: others join with --join {place}", file=sys.stderr, flush=True)
    elif options.host == 0 and not place.startswith(("file:", "etcd:")) and "/" not in place:
        host, _, port = place.rpartition(":")
        store = _serve(host.strip("[]"), int(port))
    size = options.n * options.hosts
    return store, {"GOSSAMER_RENDEZVOUS": place, "GOSSAMER_WORLD_SIZE": str(size)}


def _serve(host: str, port: int) -> Any:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((host if port == 0 else "", port))
    listening.listen(1024)
    # The other kind of server takes no socket in older versions of PyTorch.
    return TCPStore(
        host,
        listening.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=datetime.timedelta(seconds=300),
        master_listen_fd=listening.detach(),
        use_libuv=False,
    )


if __name__ == "__main__":
    sys.exit(main())
