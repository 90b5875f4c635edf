"""The folder of a run: records, status, report and progress, as the program writes them."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import pathlib
import platform
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from . import _core
from .checkpoints import PREEMPTED, on_first
from .distributed import exit_code_of, failure_of_thread, register_owner
from .run_config import config_of
from .run_window import Window, means_of, totals_of
from .survival import MembershipChange

if TYPE_CHECKING:
    from .data_parallel import DecentralizedDataParallel
    from .distributed import Session
    from .sharded import ShardedGossip

__all__ = ["Run"]

# The kinds of records, in the order that they have after one step.
_KINDS = ("step", "eval", "members")
# What evaluation() calls as the program does.
_OF_EVALUATION = {"loss": "loss_mean_model", "accuracy": "accuracy_mean_model"}
_CONSENSUS = "consensus_distance"
_PEER_LOST = 74
_OWN_KEYS = {"kind", "step", "members", "elapsed_s"}

_logger = logging.getLogger(__name__)


class Run:
    """Writes what happens in a training loop into a folder, as the command line program does.

    ``gossamer watch`` and ``gossamer report`` read the folder, also while the loop runs. Rank 0
    writes it. Where ranks may be lost, the rank that becomes 0 goes on with it, and every step is
    in one record.

    Protocol, the same on all ranks: resume a checkpoint first, then make the Run; call log() after
    backward(), and finish() after the last step. ``with gs.Run(...) as run:`` calls finish(), or
    writes with which error the loop has ended.

    The ranks tell each other their figures in the first step after that of the record, so log()
    and evaluation() communicate nothing.

    Parameters
    ----------
    folder
        The folder, which all ranks see if any of them may be lost.
    model
        The wrapper, or the ShardedGossip: log() then comes after ``optimizer.step()``, and a record
        has the figures of all ranks of all nodes.
    config
        Your own values, for config.yaml. The options of the wrapper are there as well.
    every
        Steps between two records.
    steps
        The steps of the whole run, for the time that is left; 0: not known.
    progress
        Whether rank 0 shows a line for every record on the standard error.
    tensorboard
        Whether records also go into an event file.
    overwrite
        Whether the run may replace one that is in the folder. A run that goes on from a checkpoint
        needs no permission: its records follow those until the checkpoint.
    on_record
        Called on rank 0 with every record, a dict, after it has been written.

    Raises
    ------
    CheckpointError
        On all ranks, if the folder holds a finished run, or one with checkpoints, and this run
        begins anew; and if another run writes the folder.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        model: DecentralizedDataParallel | ShardedGossip,
        config: Mapping[str, Any] | None = None,
        *,
        every: int = 10,
        steps: int = 0,
        progress: bool = True,
        tensorboard: bool = False,
        overwrite: bool = False,
        on_record: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        if every < 1 or steps < 0:
            raise _core.ConfigError(
                f"Run: every={every}, steps={steps}, allowed: every of 1 or more, steps of 0 or "
                "more"
            )
        self.folder = pathlib.Path(folder)
        if not isinstance(model, torch.nn.Module):
            model = model.trainer
        # That of all nodes where the model is in shards.
        self.session: Session = model.session.whole
        self._model = model
        self._settings = _Settings(every, steps, progress, tensorboard, on_record)
        self._is_line_open = False
        self._is_over = False
        self._config = config_of(self.folder, model, config or {})
        self._files = _Files()
        self._begin = time.monotonic()
        self._window = Window()
        self._measured: dict[str, Any] | None = None
        """The step whose record is due, and what this rank has measured after it."""
        self._untold: list[dict[str, Any]] = []
        """What this rank has measured, and not told the others."""
        self._known: list[dict[str, Any]] = []
        """Where ranks may be lost: records that a lost rank may have been about to write."""
        self._epoch = 0
        """The epoch in which the ranks last told each other."""
        self._last_change: dict[str, Any] | None = None
        self._consensus: float | None = None
        self._figures = _Figures(_sums(model))
        self._in_step = not model._engine.is_asynchronous
        self._step = 0
        """The steps of the run, as of this rank's last one. The engine may have ended."""
        if not self.session.joins:
            self._open(overwrite)
        if self.session.is_elastic:
            self._epoch = self.session.epoch
            self.session.on_change(self._changed)
        model.step_callbacks.append(self._step_done)
        register_owner(self, keep=True)
        self._mark = time.monotonic()

    # What a training loop calls.

    def log(
        self,
        loss: torch.Tensor | float | None = None,
        *,
        samples: int = 0,
        **values: torch.Tensor | float,
    ) -> None:
        """Add figures of the last step to the next record, which has the means of all ranks.

        Parameters
        ----------
        loss
            The loss. A loss on a GPU is read when its record is made.
        samples
            How many samples this rank has used, for the samples per second.
        **values
            More numbers, under their names in the record.
        """
        if not _OWN_KEYS.isdisjoint(values):
            raise _core.ConfigError(
                f"log(): {', '.join(sorted(_OWN_KEYS & values.keys()))} is a part of every record, "
                "allowed: other names"
            )
        if loss is not None:
            values["loss"] = loss
        self._window.add(values)
        self._window.samples += samples

    def evaluation(self, **values: torch.Tensor | float) -> None:
        """Note an evaluation after the last step.

        Parameters
        ----------
        **values
            Numbers. The record has their means over the ranks that note the evaluation; loss and
            accuracy, between 0 and 1, are those of the mean model in the report. Of
            ``consensus_distance``, as global_average() yields it, the record has the root mean
            square.
        """
        totals = totals_of({name: [value] for name, value in values.items()})
        if totals.get(_CONSENSUS, [0, 0])[1] > 0:
            totals[_CONSENSUS][0] **= 2
        self._untold.append({"kind": "eval", "step": self._step, "values": totals})
        # The time of an evaluation is not that of a step.
        self._mark = time.monotonic()

    def finish(self) -> None:
        """Write the end of the run, and its report. Collective, after the last step."""
        if self._is_over:
            return
        ends = self._model._survival.together("end", self._tell_end) or []
        if self._files.out is not None:
            final = json.loads(_core.final_record(json.dumps(ends), self._step))
            if not any(rank["samples"] for rank in ends):
                del final["samples_per_s"]
            self._write({**final, "elapsed_s": self._elapsed()})
            self._write_status("done", exit_code=0)
            _warn_of_failure(lambda: _core.write_report(str(self.folder)))
            if self._settings.progress:
                self._end_line()
                print(f"everything about this run is in {self.folder}", file=sys.stderr)
        self._end()

    def __enter__(self) -> Run:
        """Return the run."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the run, or write with which error the loop has ended."""
        if error is None:
            self.finish()
        elif isinstance(error, SystemExit) and error.code == PREEMPTED:
            # All ranks leave here together, after a checkpoint.
            self._stop("stopped by a signal, after a checkpoint", exit_code=PREEMPTED)
        else:
            self._fail(error)

    def close(self, *, failed: bool) -> None:
        """End the run with its session."""
        if self._is_over:
            return
        if failed:
            self._fail(failure_of_thread())
        else:
            self._stop("the session has ended before finish()")

    # The folder.

    def _open(self, overwrite: bool) -> None:
        self._step = first = self._model.num_steps
        how = "continue" if first > 0 else "replace" if overwrite else "refuse"
        versions = (
            f"gossamer {_core.version()}\nPython {platform.python_version()}\n"
            f"PyTorch {torch.__version__}\n"
        )
        try:
            environment = _core.describe_environment(self.session, versions)
            told = on_first(self.session, lambda: self._claim(how, first, environment))
        except _core.PeerLost:
            if not self.session.is_elastic:
                raise
            return  # The rank that is 0 after the first step takes the folder over.
        self._files.writer = told["writer"]
        self._begin -= told["elapsed_s"]

    def _claim(self, how: str, first: int, environment: str) -> dict[str, Any]:
        self._files.out = out = _core.RunFolder(str(self.folder), self._config, how, environment)
        for remark in out.remarks:
            _logger.warning("%s", remark)
        if self._settings.tensorboard:
            out.use_tensorboard()
        last: dict[str, Any] = {}
        if first > 0:
            last = json.loads(out.resume_after(first)) or {}
        elif self.session.is_elastic:
            # Before another rank may have to go on with the folder.
            out.begin()
        elapsed = last.get("elapsed_s") or 0.0
        self._write_status("running")
        return {"writer": _core.this_process(), "elapsed_s": elapsed}

    def _take_over(self) -> None:
        """Have the folder, on the rank that is 0 now."""
        if self._is_over or self.session.rank != 0 or self._files.out is not None:
            return
        is_there = (self.folder / "config.yaml").exists()
        how = "take over" if is_there else "replace"
        out = _core.RunFolder(str(self.folder), self._config, how, "null")
        if self._settings.tensorboard:
            out.use_tensorboard()
        if is_there:
            out.take_over(self._step)
        else:
            out.begin()
        self._files.out = out

    def _changed(self, change: MembershipChange) -> None:
        if self._is_over:
            return
        self._last_change = {
            "lost": change.lost,
            "joined": change.joined,
            "recovery_s": change.recovery_s,
            "step": change.step,
            "elapsed_s": self._elapsed(),
        }
        record = {
            "kind": "members",
            "epoch": self.session.epoch,
            "members": change.members,
            "goodput": self.session.goodput,
            **self._last_change,
        }
        # After the records of earlier steps, which have to be told first.
        self._untold.append(record)
        _warn_of_failure(self._take_over)
        self._write_status("running")

    # Figures, and the records that they make.

    def _step_done(self) -> None:
        """End a step of the wrapper, and tell the others of the window that has ended before."""
        now = time.monotonic()
        seconds = now - self._mark
        if self._measured is not None:
            self._end_window()
        step = self._model.num_steps
        # A rank that has joined since the step of the record tells as well, and has no figures.
        if step > 1 and (step - 1) % self._settings.every == 0:
            self._tell()
        self._window.steps += 1
        self._window.seconds += seconds
        self._figures.num_steps += 1
        self._figures.train_s += seconds
        self._step = step
        if step % self._settings.every == 0:
            self._measured = self._measure()
        self._mark = time.monotonic()

    def _measure(self) -> dict[str, Any]:
        last, self._figures.last = self._figures.last, _sums(self._model)
        factor = self._model._engine.recipe_factor
        return {
            "kind": "step",
            "step": self._step,
            "lr": float(self._model.optimizer.param_groups[0]["lr"]),
            "elapsed_s": self._elapsed(),
            "all_steps": self._step,
            "wait_s": self._figures.last["wait_s"] - last["wait_s"],
            "bytes_sent": self._figures.last["bytes_sent"] - last["bytes_sent"],
            **({"recipe_factor": factor} if self._model._follows_recipe else {}),
        }

    def _end_window(self) -> None:
        measured, self._measured = self._measured or self._measure(), None
        window, self._window = self._window, Window()
        totals = totals_of(window.values)
        loss, num_losses = totals.pop("loss", [0.0, 0])
        self._figures.num_samples += window.samples
        self._untold.append(
            {
                **measured,
                "loss": loss,
                "num_losses": num_losses,
                "samples": window.samples,
                "seconds": window.seconds,
                "steps": window.steps,
                "values": totals,
            }
        )

    def _tell(self) -> None:
        """Tell the others what this rank has measured. Collective, in the same steps."""
        try:
            self._exchange(None)
        except _core.PeerLost:
            if not self.session.is_elastic:
                raise
            # The ranks that are left tell each other after a later step.

    def _tell_end(self) -> list[dict[str, Any]]:
        """Return the ranks' figures of the whole run. Collective, after the last step."""
        if self._measured is not None or self._window.steps > 0:
            self._end_window()
        sums = {key: value - self._figures.first[key] for key, value in _sums(self._model).items()}
        sums["backward_s"] -= sums["pipeline_s"]
        own = {
            **sums,
            "train_s": self._figures.train_s,
            "samples": self._figures.num_samples,
            "steps": self._figures.num_steps,
        }
        while True:
            ends = self._exchange(own)
            # Ranks may make different numbers of steps.
            if all(end is not None for end in ends):
                return ends

    def _exchange(self, end: dict[str, Any] | None) -> list[Any]:
        """Tell the others all that they do not know, and return what the ranks say of their end.

        A rank that is lost may have made a record with the others, and not have written it. Where
        the members have changed, each rank tells the last records that it knows as well. Example of
        three ranks that write every step:

        1. All tell of step 5, and rank 2 alone hears all of it.
        2. Rank 0 dies before it writes the record. Ranks 1 and 2 make step 6, and go on as ranks 0
           and 1.
        3. They tell of step 6. The new rank 1 tells the record of step 5, too, and the new rank 0
           tells its own figures of step 5.
        4. The new rank 0 writes the record of step 5 as it was made, and then that of step 6.
        """
        session = self.session
        has_changed = session.is_elastic and session.epoch != self._epoch
        message = {
            "untold": self._untold,
            "known": self._known if has_changed else [],
            "end": end,
            "elapsed_s": self._elapsed(),
            "writer": _core.this_process(),
            "has_changed": has_changed,
        }
        told = [json.loads(text) for text in session.all_gather(json.dumps(message))]
        self._untold = []
        self._epoch = session.epoch
        self._files.writer = told[0]["writer"]
        self._begin = time.monotonic() - told[0]["elapsed_s"]
        records = self._records_of(told) if session.rank == 0 or session.is_elastic else []
        if session.is_elastic:
            self._known = records
        _warn_of_failure(self._take_over)
        if any(one["has_changed"] for one in told):
            records = [one for one in records if self._lacks(one)]
        for record in records:
            self._write(record)
        if records:
            self._write_status("running")
        return [one["end"] for one in told]

    def _records_of(self, told: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Make the records of what the ranks have told, in the order of their steps."""
        records: dict[tuple[int, int, int], dict[str, Any]] = {}
        rows: dict[tuple[int, int, int], dict[int, dict[str, Any]]] = {}
        for rank, one in enumerate(told):
            for record in one["known"]:
                records.setdefault(_key(record), record)
            for row in one["untold"]:
                rows.setdefault(_key(row), {})[rank] = row
        for key, of_ranks in rows.items():
            if key not in records:
                records[key] = self._record_of(of_ranks)
        return [records[key] for key in sorted(records)]

    def _record_of(self, rows: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
        first = next(iter(rows.values()))
        if first["kind"] == "members":
            return first
        values = means_of([row["values"] for row in rows.values()])
        if first["kind"] == "eval":
            square = values.get(_CONSENSUS)
            if square is not None:
                values[_CONSENSUS] = math.sqrt(square)
            renamed = {_OF_EVALUATION.get(name, name): value for name, value in values.items()}
            return {
                "kind": "eval",
                "step": first["step"],
                **renamed,
                "elapsed_s": self._elapsed(),
            }
        fields = json.loads(_core.window_fields(json.dumps(list(rows.values())), self._in_step))
        if not any(row["samples"] for row in rows.values()):
            del fields["samples_per_s"], fields["rank_samples_per_s"]
        steps = sum(row["steps"] for row in rows.values())
        if self.session.is_elastic:
            fields["members"] = [self.session.members[rank] for rank in rows]
        return {
            "kind": "step",
            "step": first["step"],
            "lr": first["lr"],
            **{key: first[key] for key in ("recipe_factor",) if key in first},
            "step_ms": 1e3 * sum(row["seconds"] for row in rows.values()) / steps,
            "bytes_sent_per_step": sum(row["bytes_sent"] for row in rows.values()) / steps,
            "elapsed_s": first["elapsed_s"],
            **fields,
            **values,
        }

    # Writing.

    def _lacks(self, record: dict[str, Any]) -> bool:
        return self._files.out is None or not self._files.out.has_record(json.dumps(record))

    def _write(self, record: dict[str, Any]) -> None:
        out = self._files.out
        self._consensus = record.get(_CONSENSUS, self._consensus)
        if out is None:
            return
        self._keep_going(lambda: out.write_metrics(json.dumps(record)))
        if record["kind"] == "step" and self._settings.progress:
            self._show(record)
        if self._settings.on_record is not None:
            self._settings.on_record(record)

    def _write_status(self, state: str, **more: Any) -> None:
        out, session = self._files.out, self.session
        if out is None:
            return
        skipped = int(self._figures.last["skipped_steps"])
        status: dict[str, Any] = {"state": state, "step": self._step}
        if self._settings.steps > 0:
            status["total_steps"] = self._settings.steps
        status["writer"] = _core.this_process()
        status["elapsed_s"] = self._elapsed()
        if session.is_open and session.is_elastic:
            status["members"] = session.members
            status["epoch"] = session.epoch
            status["goodput"] = session.goodput
            if self._last_change is not None:
                status["last_change"] = self._last_change
        status["faults"] = (
            [f"{skipped} steps were left out: a gradient was not finite"] if skipped > 0 else []
        )
        text = json.dumps({**status, **more})
        self._keep_going(lambda: out.write_status(text, sync=state != "running"))

    def _keep_going(self, write: Callable[[], None]) -> None:
        """Write while training goes on: the first of several errors in a row is a warning."""
        try:
            write()
            self._files.is_broken = False
        except _core.CheckpointError as error:
            if not self._files.is_broken:
                _logger.warning("%s; the run goes on without", error)
            self._files.is_broken = True

    def _show(self, record: dict[str, Any]) -> None:
        if self._consensus is not None:
            record = {_CONSENSUS: self._consensus, **record}
        line = _core.progress_text(json.dumps(record), self._settings.steps)
        self._is_line_open = sys.stderr.isatty()
        # The code clears what a longer line before has left.
        text, end = (f"\r{line}\033[K", "") if self._is_line_open else (line, "\n")
        print(text, end=end, file=sys.stderr, flush=True)

    def _end_line(self) -> None:
        if self._is_line_open:
            print(file=sys.stderr)
        self._is_line_open = False

    def _elapsed(self) -> float:
        return time.monotonic() - self._begin

    # The end.

    def _stop(self, message: str, **more: Any) -> None:
        """End a run that all ranks leave together before its last step."""
        try:
            self._tell_end()
        except _core.CommError as error:
            _logger.info("the last records are left out: %s", error)
        self._end_line()
        self._write_status("stopped", message=message, **more)
        self._end()

    def _fail(self, error: BaseException | None) -> None:
        self._end_line()
        message = str(error) if error is not None else "the rank has failed"
        code = exit_code_of(error) if error is not None else 1
        # The others have gone on without this rank.
        is_fenced = self.session.is_elastic and code == PREEMPTED
        if self._files.out is not None and not is_fenced:
            state = "stopped" if isinstance(error, SystemExit | KeyboardInterrupt) else "failed"
            # Where others go on, the folder is theirs from their next record on.
            self._write_status(state, message=message, exit_code=code)
        elif code == _PEER_LOST and not self.session.is_elastic:
            # Where all ranks leave together, one of them writes for the lost rank 0.
            _core.write_end_of(
                str(self.folder), self._files.writer, self.session.rank, message, code
            )
        self._end()

    def _end(self) -> None:
        self._is_over = True
        # Its lock ends with it.
        self._files.out = None
        self._model.step_callbacks.remove(self._step_done)


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What the caller of Run has asked for."""

    every: int
    steps: int
    progress: bool
    tensorboard: bool
    on_record: Callable[[dict[str, Any]], object] | None


@dataclasses.dataclass
class _Files:
    """The state of the folder's files."""

    out: _core.RunFolder | None = None
    """The folder, on the rank that writes it."""
    writer: str = ""
    """The process that writes the folder."""
    is_broken: bool = False
    """Whether the last write has failed."""


class _Figures:
    """What this rank has measured since the run began."""

    def __init__(self, sums: dict[str, float]) -> None:
        self.first = self.last = sums
        """The engine's sums at the beginning, and at the last record."""
        self.num_steps = self.num_samples = 0
        self.train_s = 0.0


def _key(record: Mapping[str, Any]) -> tuple[int, int, int]:
    kind = _KINDS.index(record["kind"])
    return record["step"], kind, record["epoch"] if record["kind"] == "members" else 0


def _sums(model: DecentralizedDataParallel) -> dict[str, float]:
    sums = model.metrics()
    return {key: value for key, value in sums.items() if key != "steps"}


def _warn_of_failure(work: Callable[[], None]) -> None:
    try:
        work()
    except (OSError, RuntimeError, ValueError) as error:
        _logger.warning("%s; the run goes on without", error)
