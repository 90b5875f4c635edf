"""Entering and leaving a world of ranks."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, TypeVar

from . import _core
from ._core import Session
from .rendezvous import leave_to_parent, meet

__all__ = ["Session", "current_session", "finalize_dist", "initialize_dist", "run_threads"]

Result = TypeVar("Result")

_INTERRUPTED = 130
# Exit codes of the command line program, which a job's launcher returns.
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (_core.ConfigError, 2),
    (_core.DataError, 3),
    (_core.CheckpointError, 4),
    (_core.NonFiniteError, 76),
    (KeyboardInterrupt, _INTERRUPTED),
)
_OTHER_CODE = 1


class _Owner(Protocol):
    """What must end its work before its session is closed."""

    @property
    def session(self) -> Session: ...

    def close(self, *, failed: bool) -> None: ...


class _State:
    """The session of this process, or of each thread that run_threads() has started."""

    def __init__(self) -> None:
        self.of_process: Session | None = None
        self.of_thread = threading.local()
        self.failure: BaseException | None = None
        self.pid = os.getpid()
        self.owners: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """With the order in which they came, which is the same on all ranks."""
        self.num_owners = 0
        self.kept: list[Any] = []
        self.lock = threading.Lock()
        self.num_meetings = 0
        self.is_watching = False
        self.store: Any = None
        """Where this process has met the others. A file would come back if it closed too late."""

    def close_owners(self, session: Session, *, failed: bool) -> None:
        """Close what belongs to a session or its parts."""
        with self.lock:
            own = [owner for owner in self.owners if owner.session.whole is session]
            own.sort(key=self.owners.__getitem__)
            self.kept = [owner for owner in self.kept if owner.session.whole is not session]
        for owner in own:
            owner.close(failed=failed)

    def session(self) -> Session | None:
        own: Session | None = getattr(self.of_thread, "session", None)
        return own if own is not None else self.of_process


_state = _State()


def current_session() -> Session:
    """Return the session of this thread, or else of this process.

    Raises
    ------
    RuntimeError
        If initialize_dist() has not been called.
    """
    session = _state.session()
    if session is None:
        raise RuntimeError("there is no session yet; call gossamer.initialize_dist() first")
    if session is _state.of_process and _state.pid != os.getpid():
        raise RuntimeError(
            "this process was forked from one that trains, and cannot take part; "
            "start it with the method 'spawn', or let it only load data"
        )
    return session


def register_owner(owner: _Owner, *, keep: bool) -> None:
    """Have `owner` closed before its session is; with `keep`, the session holds it until then."""
    with _state.lock:
        _state.owners[owner] = _state.num_owners
        _state.num_owners += 1
        if keep:
            _state.kept.append(owner)


def is_of_thread(session: Session) -> bool:
    """Return whether the rank of a session is a thread that run_threads() has started."""
    return session.whole is not _state.of_process


def failure_of_thread() -> BaseException | None:
    """Return the error with which this thread leaves its session; None if it leaves in order."""
    failure: BaseException | None = getattr(_state.of_thread, "failure", None)
    return failure


def owners_of(session: Session) -> list[Any]:
    """Return what must end its work before the session is closed."""
    with _state.lock:
        return [owner for owner in _state.owners if owner.session is session]


def initialize_dist(
    backend: str = "",
    timeout_s: float = 300.0,
    *,
    rendezvous: str = "",
    world_size: int = 0,
    rank: int = -1,
    run_id: str = "",
    store: Any = None,
    secret: str = "",
    security: str = "secret",
    interface: str = "",
    streams: int = 0,
    shared_memory: bool = True,
    survive: bool = False,
    min_ranks: int | str = "majority",
    silence_s: float = 10.0,
    join: str = "",
    nodes: int = 0,
    node: int = -1,
) -> tuple[int, int]:
    """Meet the other processes: those that torchrun, mpirun or srun has started, or one's own.

    Parameters
    ----------
    backend
        "tcp" under torchrun, or with a rendezvous or a store; "mpi" under mpirun and srun, where
        "tcp" does without MPI; "threads" for one process alone. Empty: the one that fits.
    timeout_s
        Seconds that an operation may wait for its peers without progress.
    rendezvous
        Where the ranks meet without a launcher: "HOST:PORT" of one of the hosts, "file:FOLDER" that
        all hosts share, "etcd:http://host1:2379,http://host2:2379", or "slurm". The variable
        GOSSAMER_RENDEZVOUS stands for it.
    world_size, rank
        With a rendezvous or a store: the number of ranks, and this process's. Without a rank, ranks
        are dealt by arrival.
    run_id
        Tells runs apart that meet in one place.
    store
        A store of torch.distributed, or an object as `gossamer.rendezvous.Store` describes it,
        where the ranks meet.
    secret
        All ranks give the same; messages are then encrypted. Empty: that of GOSSAMER_SECRET, or of
        the file that GOSSAMER_SECRET_FILE names. Ranks need none under torchrun on one machine,
        or where they meet at 127.0.0.1.
    security
        "none": messages between hosts are neither encrypted nor authenticated.
    interface
        The network interface, or the address, of this host at which others reach it.
    streams
        Connections that share the messages between two ranks; 0: as many as help.
    shared_memory
        False: no rank reads the memory of another one, and messages between ranks of one host go
        over connections as well. The option of the same name does it for one wrapper's gossip.
    survive
        Whether the run goes on when ranks die, and takes in others that join. Sessions of TCP
        alone. A step whose exchange fails is made without it, and the next step runs among the
        ranks that are left.
    min_ranks
        With survive: how many ranks must be left at least. "majority": more than half of the ranks
        before, which is needed with a number as well.
    silence_s
        With survive: seconds without a sign of life after which a rank counts as dead.
    join
        With survive: where a run goes on that this process joins, in the form of `rendezvous`. The
        variable GOSSAMER_JOIN stands for it. The process joins when it wraps its module, and begins
        with the model of the others at its first forward pass.
    nodes, node
        With a rendezvous or a store, where each node has a torchrun job of its own: the number of
        nodes, and this one's. The session then has the ranks of all jobs, node after node. With
        survive, a node is lost as a whole when it loses a rank. A node that joins may have any
        number: the run counts its nodes anew.

    Returns
    -------
    tuple of int
        This process's rank, and the number of ranks. A process that joins has the rank -1, of 0
        ranks, until it has joined; Session.rank and Session.world_size follow the run.

    Raises
    ------
    ConfigError
        If a launcher has started more processes than have met: each would train alone.
    """
    if _state.session() is None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("initialize_dist() is for the main thread; see run_threads()")
        _watch_exit()
        settings = _core.StartSettings()
        settings.backend, settings.timeout_s = backend, timeout_s
        settings.rendezvous, settings.run_id = rendezvous, run_id
        settings.world_size, settings.rank = world_size, rank
        _set_survival(settings, survive, min_ranks, silence_s, join)
        if nodes != 0 or node >= 0:
            has_place = bool(rendezvous or store is not None or settings.join)
            _join_jobs(settings, nodes, node, has_place=has_place)
        settings.secret, settings.security = secret, security
        settings.interface, settings.num_streams = interface, streams
        settings.shares_memory = shared_memory
        settings.num_meetings = _state.num_meetings
        _state.num_meetings += 1
        session, _state.store = meet(settings, store)
        if session is None:
            if not survive and not backend and os.environ.get("GOSSAMER_JOIN"):
                raise _core.ConfigError(
                    "initialize_dist: survive: is False, and GOSSAMER_JOIN names a run to join, "
                    "allowed: survive=True. This process would train alone"
                )
            (session,) = _core.open_sessions(backend, 0, 0, timeout_s)
        session.shares_memory = shared_memory
        _state.of_process = session
        _state.pid = os.getpid()
    session = current_session()
    return session.rank, session.world_size


def _join_jobs(settings: _core.StartSettings, nodes: int, node: int, *, has_place: bool) -> None:
    """Give the rank of a node's job its place among the ranks of all jobs."""

    def refusal(what: str) -> _core.ConfigError:
        return _core.ConfigError(f"initialize_dist: {what}")

    if nodes < 1 or node < 0 or (node >= nodes and not settings.join):
        raise refusal(
            f"nodes: is {nodes}, and node: is {node}, allowed: the number of jobs, and this job's, "
            "counted from 0"
        )
    if settings.world_size != 0 or settings.rank >= 0:
        raise refusal(
            "world_size and rank follow from nodes, node and the job's own numbers, allowed: one "
            "of the two"
        )
    if not has_place:
        settings.rendezvous = os.environ.get("GOSSAMER_RENDEZVOUS", "")
    if settings.rendezvous == "slurm" or not (has_place or settings.rendezvous):
        raise refusal(
            "nodes: the jobs do not know of one another, allowed: with rendezvous=, an address, a "
            "folder or etcd that all nodes reach, or with store="
        )
    try:
        size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    except (KeyError, ValueError):
        raise refusal(
            "nodes: this process is in no job of a node, as WORLD_SIZE and RANK would say, "
            "allowed: under torchrun, one for each node"
        ) from None
    settings.node_size = size
    if settings.survives:
        settings.place, settings.cohort = rank, f"node-{node}"
    if settings.join:
        # This module also serves programs without PyTorch.
        from .mates import name_of_new_node

        settings.cohort = name_of_new_node()
    else:
        settings.world_size, settings.rank = nodes * size, node * size + rank


def _set_survival(
    settings: _core.StartSettings, survive: bool, min_ranks: int | str, silence_s: float, join: str
) -> None:
    if isinstance(min_ranks, str):
        if min_ranks != "majority":
            raise _core.ConfigError(
                f'initialize_dist: min_ranks: is "{min_ranks}", allowed: "majority", or a number'
            )
        min_ranks = 0
    settings.survives, settings.min_ranks, settings.silence_s = survive, min_ranks, silence_s
    # A variable is for all sessions of the process, and must not stop those that lose no ranks.
    settings.join = join or (os.environ.get("GOSSAMER_JOIN", "") if survive else "")


def finalize_dist() -> None:
    """Leave the world. All ranks call it; a program that ends calls it by itself."""
    session, _state.of_process = _state.of_process, None
    if session is None or os.getpid() != _state.pid:
        return
    failure, _state.failure = _state.failure, None
    error, _ = _leave(session, failure)
    _state.store = None
    if error is not failure and error is not None:
        raise error


def _leave(session: Session, failure: BaseException | None) -> tuple[BaseException | None, bool]:
    """Close a session, or abort it where its rank has failed.

    Returns
    -------
    tuple
        The failure, or else the error with which closing has ended, and whether no other rank had
        failed before.
    """
    try:
        if failure is None:
            # Others may still train, or write what they have trained.
            session.lift_timeout()
        _state.of_thread.failure = failure
        _state.close_owners(session, failed=failure is not None)
        if failure is None:
            session.close()
    except BaseException as error:
        failure = failure or error
    if failure is None:
        return None, False
    return failure, session.abort(exit_code_of(failure), _text_of(failure))


def exit_code_of(error: BaseException) -> int:
    """Return the code with which a process ends that `error` ends."""
    if isinstance(error, _core.CommError):
        return int(error.exit_code)
    return next((code for kind, code in _CODES if isinstance(error, kind)), _OTHER_CODE)


def _text_of(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(type(error), error)).strip()


def _watch_exit() -> None:
    if _state.is_watching:
        return
    _state.is_watching = True
    before = sys.excepthook

    def note_failure(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        _state.failure = error
        before(kind, error, trace)
        # Python itself ends with 1 after every exception, and leaves by this one where a hook
        # raises it. A prompt goes on.
        code = exit_code_of(error)
        is_prompt = hasattr(sys, "ps1") or sys.flags.interactive
        if code not in (_OTHER_CODE, _INTERRUPTED) and not is_prompt:
            raise SystemExit(code)

    sys.excepthook = note_failure
    atexit.register(_finalize_at_exit)
    os.register_at_fork(after_in_child=_leave_to_parent)


def _finalize_at_exit() -> None:
    try:
        finalize_dist()
    except _core.NonFiniteError as error:
        # Of the last step, on a GPU. Python itself would end with 0.
        traceback.print_exception(error)
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(exit_code_of(error))
    except _core.CommError as error:
        # Another rank has failed, or this one has left early. A trace would show this module alone.
        print(f"gossamer: {error}", file=sys.stderr)


def _leave_to_parent() -> None:
    # The engine closes its own connections in a child.
    if _state.store is not None:
        leave_to_parent(_state.store)


def run_threads(
    num_ranks: int,
    work: Callable[[], Result],
    *,
    node_size: int = 0,
    timeout_s: float = 300.0,
    survive: bool = False,
) -> list[Result]:
    """Run `work` on ranks that are threads of this process, as in a notebook.

    Parameters
    ----------
    num_ranks
        The number of ranks.
    work
        Called on every thread; current_session() is then the thread's own. Python runs one thread
        at a time, so this is for trying things out.
    node_size
        Consecutive ranks that count as one node; 0: all.
    timeout_s
        Seconds that an operation may wait for its peers without progress.
    survive
        Whether the others go on when `work` fails on a rank.

    Returns
    -------
    list
        The results, by rank; with `survive`, None for ranks that have failed.

    Raises
    ------
    BaseException
        What the first rank that failed has raised. With `survive`, only if all have failed.
    """
    sessions = _core.open_sessions("threads", num_ranks, node_size, timeout_s, survive)
    results: list[Any] = [None] * num_ranks
    first: list[BaseException] = []
    num_failed = 0

    def run(rank: int) -> None:
        session = sessions[rank]
        _state.of_thread.session = session
        failure: BaseException | None = None
        try:
            results[rank] = work()
        except BaseException as error:
            failure = error
        failure, is_first = _leave(session, failure)
        if failure is not None:
            nonlocal num_failed
            num_failed += 1
            is_first = is_first or (survive and not first)
        if failure is not None and is_first:
            first.append(failure)
        _state.of_thread.session = None

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if first and (not survive or num_failed == num_ranks):
        raise first[0]
    return results
