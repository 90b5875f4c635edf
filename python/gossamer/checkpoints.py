"""Checkpoints of a training loop: whole or not there at all, resumed with any number of ranks."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from . import _core
from .distributed import register_owner

if TYPE_CHECKING:
    from .data_parallel import DecentralizedDataParallel
    from .distributed import Session
    from .state import StateCopy

__all__ = ["Checkpoints"]

_STAGING = ".staging-"
PREEMPTED = 75
_PATIENCE_S = 1.0
# Where the command line program has the state of PyTorch's random numbers, too.
_TORCH = "random/torch"

_logger = logging.getLogger(__name__)


class Checkpoints:
    """Saves a run in a folder that all ranks see, and goes on from it.

    A checkpoint is a folder step-000000200 with two files of each rank and manifest.json, which is
    written last and has the size and the SHA-256 of every file. A process that dies at any moment
    leaves the earlier checkpoints as they are. The state of every rank is copied, and a thread
    writes the copy while training goes on.

    Protocol, the same on all ranks: resume() before the first step, step() after every step, or
    save() where you like; wait() before the files are used. The end of the session waits as well.

    Parameters
    ----------
    folder
        Where the checkpoints are.
    keep
        How many stay. Older ones are removed.
    every_s
        step() saves after so many seconds; 0: never.
    every
        step() saves after so many steps; 0: never.
    check_every
        step() asks the other ranks in every so many steps whether there is something to save.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int = 3,
        every_s: float = 900.0,
        every: int = 0,
        check_every: int = 10,
    ) -> None:
        if keep < 1 or check_every < 1 or every_s < 0 or every < 0:
            raise _core.ConfigError(
                f"Checkpoints: keep={keep}, every_s={every_s}, every={every}, "
                f"check_every={check_every}, allowed: keep and check_every of 1 or more, the "
                "others of 0 or more"
            )
        self.folder = os.fspath(folder)
        self._keep = keep
        self._every_s, self._every, self._check_every = every_s, every, check_every
        self._last_s = time.monotonic()
        self._under_way: _Saving | None = None
        self._signalled_s: float | None = None
        """When the first signal has come; None: none has."""
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        """The session of the run that is saved."""
        assert self._session is not None
        return self._session

    # Saving.

    def save(
        self, model: DecentralizedDataParallel, extra: Any = None, *, wait: bool = True
    ) -> str | None:
        """Save the run. Collective, between two steps.

        Parameters
        ----------
        model
            The wrapper.
        extra
            What resume() shall return, of values that torch.load(weights_only=True) reads.
        wait
            False: return when the state has been copied. step(), the next save() or wait() then
            ends the checkpoint.

        Returns
        -------
        str or None
            The folder of the checkpoint; None without `wait`, and where ranks die or join at this
            moment, which costs this checkpoint.

        Raises
        ------
        CheckpointError
            On all ranks, if a rank cannot write its files. Earlier checkpoints stay.
        """
        self._belong_to(model.session)
        if model.has_newcomers:
            return None
        self._finish()
        self._last_s = time.monotonic()
        try:
            copy = model.copy_of_state(
                {"extra": extra, "random": _random_state()}, {_TORCH: torch.get_rng_state()}
            )
            self._under_way = _Saving(self.folder, model.session, copy, model.num_steps)
        except _core.PeerLost as lost:
            _logger.warning("the checkpoint after step %d is given up: %s", model.num_steps, lost)
            return None
        return self._finish() if wait else None

    def step(self, model: DecentralizedDataParallel, extra: Any = None) -> bool:
        """Save if it is time to, or if a signal has come. Collective, after every step.

        After a signal of handle_signals() the run is saved, and the process ends with code 75.

        Returns
        -------
        bool
            Whether a checkpoint has begun.
        """
        self._belong_to(model.session)
        steps = model.num_steps
        if model.has_newcomers:
            return False
        is_due = self._every > 0 and steps % self._every == 0
        if steps % self._check_every != 0 and not is_due:
            return False
        first = model.session.rank == 0
        is_late = first and 0 < self._every_s <= time.monotonic() - self._last_s
        is_written = self._under_way is None or self._under_way.is_written
        try:
            late, signals, written = model.session.sum(
                [float(is_late), float(self._signalled_s is not None), float(is_written)]
            )
        except _core.PeerLost:
            return False  # The next step goes on without them, and the next check saves.
        if self._under_way is not None and written == model.session.world_size:
            self._finish()
        if signals > 0:
            self.save(model, extra)
            sys.exit(PREEMPTED)
        if not is_due and late == 0:
            return False
        self.save(model, extra, wait=False)
        return True

    def wait(self) -> str | None:
        """End the checkpoint under way, and return its folder. Collective."""
        return self._finish()

    def handle_signals(self, signals: Iterable[int] = (signal.SIGTERM, signal.SIGUSR1)) -> None:
        """Have step() save and end the run when a signal has come to any rank.

        A signal that comes a second later or more ends the process at once, so that a process that
        makes no step can be stopped.
        """
        for number in signals:
            signal.signal(number, self._note_signal)

    def _note_signal(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if self._signalled_s is None:
            self._signalled_s = now
        elif now - self._signalled_s >= _PATIENCE_S:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def close(self, *, failed: bool) -> None:
        """End the checkpoint under way with the session."""
        if not failed:
            self._finish()

    def _belong_to(self, session: Session) -> None:
        if self._session is not session:
            self._session = session
            register_owner(self, keep=True)

    def _finish(self) -> str | None:
        saving, self._under_way = self._under_way, None
        if saving is None:
            return None
        if saving.epoch != saving.session.epoch:
            _logger.warning("the checkpoint after step %d is given up with its ranks", saving.step)
            saving.give_up()
            return None
        try:
            path = saving.finish()
        except _core.PeerLost as lost:
            _logger.warning("the checkpoint after step %d is given up: %s", saving.step, lost)
            saving.give_up()
            return None
        if saving.session.rank == 0:
            for old in _core.list_checkpoints(self.folder)[: -self._keep]:
                _remove(self.folder, old)
        return path

    # Going on.

    def resume(self, model: DecentralizedDataParallel, *, reshape: str = "same") -> Any:
        """Go on from the newest checkpoint that is as it was written. Collective.

        Checkpoints of the command line program are taken as well.

        Parameters
        ----------
        model
            The wrapper, before its first step.
        reshape
            "same": the number of ranks is that of the checkpoint, and training goes on bit for bit.
            "average": any number of ranks goes on from the mean of the models and of the
            optimizers' states, as the program's --reshape average.

        Returns
        -------
        object
            What save() was given as `extra`, {} if that was nothing. None: there is no checkpoint,
            or this rank joins a run and takes the model of the others.

        Raises
        ------
        CheckpointError
            For another number of ranks with "same".
        """
        if reshape not in ("same", "average"):
            raise _core.ConfigError(f'reshape: is "{reshape}", allowed: "same", "average"')
        session = model.session
        if session.joins:
            return None
        self._belong_to(session)
        newest = on_first(session, self._newest)
        if newest is None:
            return None
        path, size = newest["path"], newest["world_size"]
        if size == session.world_size:
            own = model.load_checkpoint(path, session.rank)
            file = os.path.join(path, _core.rank_file_name(session.rank))
            numbers, of_torch = own.get("random", {}), _core.read_bytes(file, _TORCH)
            _set_random_state(numbers, of_torch)
            model.go_on_in_data(lambda: _set_random_state(numbers, of_torch))
        elif reshape == "average":
            average = os.path.join(self.folder, f"{_STAGING}average")
            on_first(session, lambda: _core.write_average(path, size, average))
            own = model.load_checkpoint(path, 0, tensors=average)
            session.barrier()
            if session.rank == 0:
                os.remove(average)
        else:
            raise _core.CheckpointError(
                f"{path} is of {size} ranks, and this run has {session.world_size}, allowed: as "
                'many, or resume(model, reshape="average")'
            )
        extra = own.get("extra")
        return {} if extra is None else extra

    def _newest(self) -> dict[str, Any] | None:
        if not os.path.isdir(self.folder):
            return None
        for name in os.listdir(self.folder):
            if name.startswith(_STAGING):
                shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)
        for path in reversed(_core.list_checkpoints(self.folder)):
            try:
                manifest = _core.verify_checkpoint(path)
            except _core.CheckpointError as error:
                _logger.warning("%s; an older checkpoint is tried", error)
                continue
            return {"path": path, "world_size": manifest.world_size}
        return None


class _Saving:
    """A checkpoint under way. A thread of each rank writes the rank's files."""

    def __init__(self, folder: str, session: Session, copy: StateCopy, step: int) -> None:
        self.session, self.step, self.epoch = session, step, session.epoch
        self._folder = folder
        self._rank = session.rank
        self._copy = copy
        self._result: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._write, name="gossamer-checkpoint")
        self._thread.start()

    @property
    def is_written(self) -> bool:
        """Whether this rank's files are on the disk, or have failed."""
        return not self._thread.is_alive()

    @property
    def _staging(self) -> str:
        name = f"{_STAGING}{_core.checkpoint_name(self.step)}-{self.epoch}"
        return os.path.join(self._folder, name)

    def _write(self) -> None:
        try:
            os.makedirs(self._staging, exist_ok=True)
            self._result["files"] = self._copy.write(self._staging, self._rank)
        except (OSError, RuntimeError) as error:
            self._result["error"] = f"rank {self._rank}: {error}"

    def finish(self) -> str:
        """Give the checkpoint its name when all ranks have written. Collective."""
        self._thread.join()
        parts = [json.loads(text) for text in self.session.all_gather(json.dumps(self._result))]
        errors = [part["error"] for part in parts if "error" in part]
        files = {name: tuple(d) for part in parts for name, d in part.get("files", {}).items()}
        path = os.path.join(self._folder, _core.checkpoint_name(self.step))
        try:
            if errors:
                raise _core.CheckpointError(errors[0])
            on_first(self.session, lambda: self._complete(path, files))
        except _core.CheckpointError:
            if self._rank == 0:
                shutil.rmtree(self._staging, ignore_errors=True)
            raise
        return path

    def give_up(self) -> None:
        """Remove what has been written. Others may still write, and a later run removes that."""
        self._thread.join()
        shutil.rmtree(self._staging, ignore_errors=True)

    def _complete(self, path: str, files: Mapping[str, Any]) -> None:
        members = self.session.members
        _core.write_manifest(self._staging, self.step, self.session.world_size, members, files)
        _core.verify_checkpoint(self._staging)
        # The run may have gone on from an older checkpoint, and come here again.
        _remove(self._folder, path)
        os.rename(self._staging, path)
        _core.sync_folder(self._folder)


def _remove(folder: str, path: str) -> None:
    """Remove a checkpoint, which has no name any more if the process dies meanwhile."""
    removed = os.path.join(folder, f"{_STAGING}removed")
    shutil.rmtree(removed, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, removed)
    shutil.rmtree(removed, ignore_errors=True)


def on_first(session: Session, work: Callable[[], Any]) -> Any:
    """Return what `work` returns on rank 0; its error on all ranks. Collective."""
    told: dict[str, Any] = {}
    if session.rank == 0:
        try:
            told["value"] = work()
        except (OSError, RuntimeError, ValueError) as error:
            told["error"] = str(error)
    first = json.loads(session.all_gather(json.dumps(told))[0])
    if "error" in first:
        raise _core.CheckpointError(first["error"])
    return first["value"]


def _random_state() -> dict[str, Any]:
    version, numbers, gauss = random.getstate()
    state: dict[str, Any] = {"python": [version, list(numbers), gauss]}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = [kind, keys.tolist(), int(position), int(has_gauss), float(cached)]
    return state


def _set_random_state(state: Mapping[str, Any], of_torch: bytes | None) -> None:
    if of_torch is not None:
        torch.set_rng_state(torch.frombuffer(bytearray(of_torch), dtype=torch.uint8))
    if "python" in state:
        version, numbers, gauss = state["python"]
        random.setstate((version, tuple(numbers), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "numpy" in state:
        import numpy as np

        kind, keys, position, has_gauss, cached = state["numpy"]
        np.random.set_state((kind, np.array(keys, np.uint32), position, has_gauss, cached))
