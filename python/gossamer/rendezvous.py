"""How processes meet without MPI: in a store of PyTorch, or in one that the caller brings."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import fcntl
import logging
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from . import _core
from ._core import Session, Start, StartSettings

__all__ = ["Store", "leave_to_parent", "meet", "serve"]

_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.1
_CONNECT_S = 1.0
_AGAIN_S = 2.0
_QUIET_S = 10.0

_logger = logging.getLogger(__name__)


class Store(Protocol):
    """Where ranks leave records that all of them see. Asked when ranks meet, and never in a step.

    Values are not empty. Every exception counts as a store that cannot be reached, and its text
    becomes part of a CommError.
    """

    def set(self, key: str, value: bytes) -> None:
        """Make a value visible to all."""

    def get(self, key: str, limit_s: float) -> bytes:
        """Return the value of `key`, and wait up to `limit_s` seconds until a process sets it.

        Raises
        ------
        TimeoutError
            If no process has.
        """

    def compare_and_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Set `key` to `desired` if its value is `expected`, and return the value it has then.

        With an empty `expected`, set `key` if it has not been set. An empty result: it has not
        been set, and another value was expected.
        """

    # A store may also answer for several keys at once, which spares questions where it is far away:
    # wait_for_all(keys, limit_s) -> bool, get_all(keys) -> list[bytes], draw_ticket(key) -> int,
    # which counts its calls with a key from 0 on.


class _TorchStore:
    """A store of torch.distributed.

    Parameters
    ----------
    store
        The store.
    reopen
        Makes another connection with a server that may be back, after a call that has failed.
    """

    def __init__(self, store: Any, reopen: Callable[[], Any] | None = None) -> None:
        self._inner = store
        self._reopen = reopen
        self.reopens = reopen is not None

    @property
    def port(self) -> int:
        """The port of the server."""
        port: int = self._inner.port
        return port

    @contextlib.contextmanager
    def _store(self) -> Iterator[Any]:
        if self._inner is None and self._reopen is not None:
            self._inner = self._reopen()
        try:
            yield self._inner
        except RuntimeError:
            # A client whose connection has ended fails for ever.
            if self.reopens:
                self._inner = None
            raise

    def set(self, key: str, value: bytes) -> None:
        with self._store() as store:
            store.set(key, value)

    def get(self, key: str, limit_s: float) -> bytes:
        if not self.wait_for_all([key], limit_s):
            raise TimeoutError(f"nobody has set {key} in the store within {limit_s:g} s")
        with self._store() as store:
            value: bytes = store.get(key)
        return value

    def compare_and_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        with self._store() as store:
            now: bytes = store.compare_set(key, expected, desired)
            # It answers with `expected` for a key that has not been set.
            if expected and now == expected and not store.check([key]):
                return b""
        return now

    def wait_for_all(self, keys: list[str], limit_s: float) -> bool:
        # The store's own wait cannot be interrupted.
        end = time.monotonic() + limit_s
        pause_s = _FIRST_PAUSE_S
        with self._store() as store:
            while not store.check(keys):
                left_s = end - time.monotonic()
                if left_s <= 0:
                    return False
                time.sleep(min(pause_s, left_s))
                # Of many ranks each asks for many keys.
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S * (1 + len(keys) // 64))
        return True

    def get_all(self, keys: list[str]) -> list[bytes]:
        with self._store() as store:
            if store.has_extended_api():
                values: list[bytes] = store.multi_get(keys)
                return values
            return [store.get(key) for key in keys]

    def draw_ticket(self, key: str) -> int:
        with self._store() as store:
            return int(store.add(key, 1)) - 1


def meet(settings: StartSettings, store: Any = None) -> tuple[Session | None, Any]:
    """Meet the other processes, if they shall meet without MPI.

    Parameters
    ----------
    settings
        What the caller of initialize_dist() has given.
    store
        A store of torch.distributed, or one as `Store` describes it. None: the store that the
        settings and the environment name.

    Returns
    -------
    tuple
        The session, or None where MPI connects the processes or this one is alone; and the store,
        which must live as long as the session.
    """
    settings.has_store = store is not None
    start = _core.plan_start(settings)
    if not start.is_rank:
        return None, None
    if not start.needs_store:
        return start.open(None, False), None
    if store is not None:
        own = store if hasattr(store, "compare_and_set") else _TorchStore(store)
        return start.open(own, False), store
    opened, serves = _open_torch_store(start, settings.timeout_s)
    return start.open(opened, serves), Served(opened) if serves else opened


class Served(NamedTuple):
    """A store of PyTorch that this process serves."""

    store: _TorchStore


def leave_to_parent(store: Any) -> None:
    """Give a store up in a child of fork(), where its threads are not.

    A server's sockets would keep its port taken, and its clients waiting, when the parent has
    ended.
    """
    # Its destructor would wait for the threads, or write to a file of the run.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))
    if not isinstance(store, Served):
        return
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number, connection in _tcp_sockets():
        if connection.getsockname()[1] == store.store.port:
            # The number stays taken for those who close it later.
            os.dup2(nothing, number, inheritable=False)
    os.close(nothing)


def _tcp_sockets() -> Iterator[tuple[int, socket.socket]]:
    """Give the number of each TCP socket of this process, and a copy of it."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as copy:
                    is_tcp = copy.family in (socket.AF_INET, socket.AF_INET6)
                    if is_tcp and copy.type == socket.SOCK_STREAM:
                        yield int(name), copy


def serve(host: str, listening: int, port: int, timeout_s: float) -> Any:
    """Serve a store of PyTorch at a socket that listens already. The store closes the socket."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # The other kind of server takes no socket in older versions of PyTorch.
    return TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=datetime.timedelta(seconds=timeout_s),
        master_listen_fd=listening,
        use_libuv=False,
    )


def _check_locks(path: str) -> None:
    """Raise CommError where a file system has no locks, which PyTorch's FileStore needs."""
    with open(path, "a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # Another rank has the lock at this moment, so there are locks.
        except OSError as error:
            raise _core.CommError(
                f"the store {path} cannot be used: its file system has no locks "
                f"({error.strerror}), and ranks that meet in a file need them. Take a folder of "
                "another file system, or meet at an address (HOST:PORT) or in etcd"
            ) from error


def _open_torch_store(start: Start, timeout_s: float) -> tuple[_TorchStore, bool]:
    """Open the store of PyTorch that a start names; says whether this process serves it."""
    from torch.distributed import FileStore, TCPStore  # type: ignore[attr-defined]

    if start.file:
        folder = os.path.dirname(start.file)
        # PyTorch would wait for minutes for a folder that does not exist.
        if not os.access(folder, os.W_OK | os.X_OK):
            raise _core.CommError(
                f"the store {start.file} cannot be written: check that {folder} is a folder that "
                "all machines share and that this user may write"
            )
        _check_locks(start.file)
        return _TorchStore(FileStore(start.file, -1)), False
    own = start.listen()
    try:
        if own is not None:
            return _TorchStore(serve(start.host, *own, timeout_s)), True

        def connect(limit_s: float) -> Any:
            _wait_for_server(start, limit_s)
            client = TCPStore(
                start.host,
                start.port,
                is_master=False,
                wait_for_workers=False,
                timeout=datetime.timedelta(seconds=timeout_s),
            )
            _core.limit_silence(start.port, timeout_s)
            return client

        return _TorchStore(connect(timeout_s), reopen=lambda: connect(_AGAIN_S)), False
    except RuntimeError as error:
        if own is not None:
            os.close(own[0])
        verb = "reached" if own is None else "served"
        reason = str(error).partition("\n")[0]
        raise _core.CommError(f"the store at {start.place} cannot be {verb}: {reason}") from None


def _wait_for_server(start: Start, timeout_s: float) -> None:
    """Wait until a process listens at the store's place. Unlike PyTorch's wait, Ctrl-C ends it."""
    begin = time.monotonic()
    has_told = False
    while True:
        waited_s = time.monotonic() - begin
        left_s = timeout_s - waited_s
        if waited_s > _QUIET_S and not has_told:
            has_told = True
            _logger.warning("waits for the process that serves the store at %s", start.place)
        try:
            limit_s = max(min(left_s, _CONNECT_S), _LONGEST_PAUSE_S)
            socket.create_connection((start.host, start.port), limit_s).close()
            return
        except OSError as error:
            if left_s <= 0:
                raise _core.CommError(
                    f"the store at {start.place} does not answer within {timeout_s:g} s: check "
                    "that a process of this run has started there, that the port is right, and "
                    f"that no firewall is between ({error})"
                ) from None
        time.sleep(_LONGEST_PAUSE_S)
