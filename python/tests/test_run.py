"""The folder of a run that a loop in Python writes."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess

import pytest
import torch
from conftest import Death, alone, loss_of, make_mlp, rank, run_python
from test_survival import FailsInStep, launch, ranks_of

import gossamer as gs

PROGRAM = os.environ.get("GOSSAMER_PROGRAM")
needs_program = pytest.mark.skipif(
    PROGRAM is None, reason="GOSSAMER_PROGRAM does not name the program"
)
SGD = lambda ps: torch.optim.SGD(ps, lr=0.25)  # noqa: E731


LOOP = """
import sys, torch
import gossamer as gs
gs.initialize_dist(survive=True)
model = gs.DecentralizedDataParallel(torch.nn.Linear(2, 1), lambda ps: torch.optim.SGD(ps, 0.01))
ends = []
model.session.on_change(lambda change: change.joined and ends.append(change.step + 20))
if model.session.joins:
    ends.append(model.num_steps + 20)
with gs.Run(sys.argv[1], model, every=5) as run:
    while not ends or model.num_steps < ends[0]:
        loss = model(torch.ones(1, 2)).square().sum()
        loss.backward()
        run.log(loss, samples=1)
"""


def make(**options):
    return gs.DecentralizedDataParallel(make_mlp(), SGD, "ring", **options)


def quiet(folder, model, config=None, **options):
    return gs.Run(folder, model, config, **{"progress": False, "every": 1, **options})


def train(model, run, last, victim=None):
    """Train until step `last`; the rank `victim` dies half way."""
    own = rank()
    while model.num_steps < last:
        if own == victim and model.num_steps == last // 2:
            raise Death
        loss = loss_of(model, own, model.num_steps)
        loss.backward()
        run.log(loss, samples=16)


def records(folder, kind=None):
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [r for r in map(json.loads, lines) if kind in (None, r["kind"])]


def steps_in(folder):
    return [record["step"] for record in records(folder, "step")]


def status(folder):
    return json.loads((folder / "status.json").read_text(encoding="utf-8"))


def program(*arguments):
    done = subprocess.run(
        [PROGRAM, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_to_the_end(folder, num_ranks=2, last=6, **options):
    def work():
        model = make()
        with quiet(folder, model, **options) as run:
            train(model, run, last)

    gs.run_threads(num_ranks, work)


def test_the_folder_has_every_step_once(tmp_path):
    run_to_the_end(tmp_path)
    assert steps_in(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_a_record_has_the_means_of_all_ranks(tmp_path):
    def work():
        model = make()
        with quiet(tmp_path, model, every=2) as run:
            for step in range(4):
                loss_of(model, rank(), step).backward()
                run.log(10 * rank() + step, samples=8, depth=rank() + 1)

    gs.run_threads(2, work)
    first, second = records(tmp_path, "step")
    assert (first["step"], second["step"]) == (2, 4)
    assert (first["loss"], second["loss"]) == (5.5, 7.5)
    assert second["rank_loss"] == [2.5, 12.5]
    assert second["depth"] == 1.5
    assert second["lr"] == 0.25
    assert second["samples_per_s"] > 0


def test_the_last_steps_have_a_record_as_well(tmp_path):
    run_to_the_end(tmp_path, last=7, every=3)
    assert steps_in(tmp_path) == [3, 6, 7]


def test_losses_that_are_not_finite_are_left_out(tmp_path):
    def work():
        model = make()
        with quiet(tmp_path, model, every=2) as run:
            for step in range(4):
                loss_of(model, 0, step).backward()
                run.log(math.nan if step != 1 else torch.tensor(3.0))

    alone(work)
    assert [r["loss"] for r in records(tmp_path, "step")] == [3.0, None]


def test_a_loop_that_logs_nothing_has_records(tmp_path):
    def work():
        model = make()
        with quiet(tmp_path, model):
            loss_of(model, 0, 0).backward()

    alone(work)
    (record,) = records(tmp_path, "step")
    assert record["loss"] is None
    assert "samples_per_s" not in record


def test_names_of_every_record_are_refused(tmp_path):
    def work():
        with (
            quiet(tmp_path, make()) as run,
            pytest.raises(gs.ConfigError, match="step is a part of every record"),
        ):
            run.log(step=1)

    alone(work)


def test_a_loss_of_several_values_is_refused(tmp_path):
    def work():
        with (
            quiet(tmp_path, make()) as run,
            pytest.raises(gs.ConfigError, match=r"log\(\): loss has 3 values, allowed: one"),
        ):
            run.log(torch.zeros(3))

    alone(work)


def test_an_evaluation_is_the_mean_of_the_ranks_that_note_it(tmp_path):
    def work():
        model = make()
        with quiet(tmp_path, model) as run:
            loss_of(model, rank(), 0).backward()
            run.evaluation(
                loss=1.0 + rank(), accuracy=0.5, consensus_distance=3.0 if rank() == 0 else 4.0
            )
            loss_of(model, rank(), 1).backward()
            if rank() == 1:
                run.evaluation(accuracy=0.75)

    gs.run_threads(2, work)
    first, second = records(tmp_path, "eval")
    assert first["step"] == 1
    assert first["loss_mean_model"] == 1.5
    assert first["accuracy_mean_model"] == 0.5
    assert first["consensus_distance"] == math.sqrt(12.5)
    assert second["accuracy_mean_model"] == 0.75


def test_records_of_one_step_follow_each_other(tmp_path):
    def work():
        model = make()
        with quiet(tmp_path, model) as run:
            for step in range(2):
                run.log(loss_of(model, 0, step).backward())
                run.evaluation(loss=1.0)

    alone(work)
    kinds = [(r["step"], r["kind"]) for r in records(tmp_path)]
    assert kinds == [(1, "step"), (1, "eval"), (2, "step"), (2, "eval"), (2, "final")]


def test_the_end_has_the_times_of_all_ranks(tmp_path):
    run_to_the_end(tmp_path, num_ranks=3)
    (end,) = records(tmp_path, "final")
    assert (end["step"], end["world_size"]) == (6, 3)
    assert end["bytes_sent_per_step"] > 0
    for part in ("step", "forward", "backward", "wait", "update"):
        assert len(end[f"rank_{part}_ms"]) == 3
    assert sum(end["rank_forward_ms"]) > 0


def test_the_status_says_how_the_run_goes(tmp_path):
    seen = []

    def work():
        model = make()
        with quiet(tmp_path, model, steps=6) as run:
            train(model, run, 6)
            seen.append(status(tmp_path))

    alone(work)
    end = status(tmp_path)
    assert (seen[0]["state"], seen[0]["step"], seen[0]["total_steps"]) == ("running", 5, 6)
    assert (end["state"], end["exit_code"], end["faults"]) == ("done", 0, [])
    assert end["writer"].startswith(f"process {os.getpid()} on ")


def test_the_configuration_has_options_and_own_values(tmp_path):
    run_to_the_end(tmp_path, config={"depth": 3, "data": {"name": "a: b"}, "sizes": [1, 2]})
    text = (tmp_path / "config.yaml").read_text(encoding="utf-8")
    assert 'algorithm:\n  name: "gossip"\n' in text
    assert 'optimizer:\n  name: "SGD"\n  lr: 0.25\n' in text
    assert 'config:\n  depth: 3\n  data:\n    name: "a: b"\n  sizes: [1, 2]\n' in text


def test_ranks_may_make_different_numbers_of_steps(tmp_path):
    def work():
        model = make()
        with quiet(tmp_path, model, every=2) as run, model.join():
            for step in range(5 if rank() == 0 else 2):
                loss = loss_of(model, rank(), step)
                loss.backward()
                run.log(loss)

    gs.run_threads(2, work)
    assert steps_in(tmp_path) == [2, 4, 5]
    assert records(tmp_path, "step")[2]["rank_loss"][1] is None


def test_asynchronous_ranks_have_records(tmp_path):
    def work():
        model = make(algorithm="async_gossip")
        with quiet(tmp_path, model, every=2) as run:
            for step in range(4 if rank() == 0 else 8):
                loss = loss_of(model, rank(), step)
                loss.backward()
                run.log(loss)

    gs.run_threads(2, work)
    assert steps_in(tmp_path) == [2, 4, 6, 8]
    assert records(tmp_path, "step")[0]["rank_steps"] == [2.0, 2.0]


# What others read.


@needs_program
def test_watch_shows_the_run(tmp_path):
    run_to_the_end(tmp_path)
    shown = program("watch", "--once", tmp_path)
    assert f"{tmp_path}  done  step 6  after 0:" in shown
    assert "lr 0.25" in shown
    assert "waiting ms/step" in shown


@needs_program
def test_report_compares_runs(tmp_path):
    for name in ("one", "two"):
        run_to_the_end(tmp_path / name)
    program("report", tmp_path / "one", tmp_path / "two", "-o", tmp_path / "both.html")
    page = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert "Training loss over steps" in page
    assert "Time of a step on every rank: two" in page


def test_the_report_has_the_timeline_of_the_folder(tmp_path):
    def work():
        options = {"timeline": str(tmp_path / "timeline.json"), "timeline_steps": [2, 6]}
        model = make(options=options)
        with quiet(tmp_path, model) as run:
            train(model, run, 10)

    gs.run_threads(2, work)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"Timeline of a few steps: {tmp_path.name}" in page
    assert "rounds of the topology" in page


def test_records_go_into_an_event_file(tmp_path):
    run_to_the_end(tmp_path, tensorboard=True)
    (events,) = tmp_path.glob("events.out.tfevents.*")
    assert b"train/loss" in events.read_bytes()


def test_a_tracker_gets_every_record(tmp_path):
    given = []
    run_to_the_end(tmp_path, on_record=given.append)
    assert given == records(tmp_path)


def test_progress_is_one_line_for_every_record(tmp_path, capsys):
    def work():
        model = make()
        with gs.Run(tmp_path, model, every=2, steps=4) as run:
            for step in range(4):
                loss_of(model, rank(), step).backward()
                run.log(0.5)

    gs.run_threads(2, work)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "step 2/4  loss 0.5000  lr 2.50e-01  left 0:00"
    assert lines[1:] == [
        "step 4/4  loss 0.5000  lr 2.50e-01  left 0:00",
        f"everything about this run is in {tmp_path}",
    ]


def test_without_progress_nothing_is_printed(tmp_path, capfd):
    run_to_the_end(tmp_path)
    assert capfd.readouterr() == ("", "")


# Earlier runs in the folder.


def test_a_finished_run_is_kept(tmp_path):
    run_to_the_end(tmp_path / "a")
    with pytest.raises(gs.CheckpointError, match=r"holds a finished run.* as .*a-2; to replace"):
        run_to_the_end(tmp_path / "a")
    assert status(tmp_path / "a")["state"] == "done"


def test_a_finished_run_is_replaced_when_told(tmp_path):
    run_to_the_end(tmp_path)
    run_to_the_end(tmp_path, last=3, overwrite=True)
    assert steps_in(tmp_path) == [1, 2, 3]


def test_a_run_with_checkpoints_is_kept(tmp_path):
    def work():
        model = make()
        run = quiet(tmp_path, model)
        train(model, run, 2)
        gs.Checkpoints(run.folder / "checkpoints").save(model)
        raise Death

    with pytest.raises(Death):
        alone(work)
    with pytest.raises(gs.CheckpointError, match=r"call Checkpoints\.resume\(model\) before"):
        run_to_the_end(tmp_path)


def test_a_folder_that_is_being_written_is_refused(tmp_path):
    def work():
        run = quiet(tmp_path, make())
        with pytest.raises(gs.CheckpointError, match="belongs to another run"):
            quiet(tmp_path, make())
        run.finish()

    alone(work)


@pytest.mark.parametrize(("num_ranks", "again", "reshape"), [(2, 2, "same"), (3, 2, "average")])
def test_a_resumed_run_goes_on_after_the_checkpoint(tmp_path, num_ranks, again, reshape):
    def first():
        model = make()
        run = quiet(tmp_path, model)
        checkpoints = gs.Checkpoints(run.folder / "checkpoints")
        train(model, run, 4)
        checkpoints.save(model)
        train(model, run, 7)
        raise Death

    def second():
        model = make()
        checkpoints = gs.Checkpoints(tmp_path / "checkpoints")
        checkpoints.resume(model, reshape=reshape)
        with quiet(tmp_path, model) as run:
            train(model, run, 9)

    with pytest.raises(Death):
        gs.run_threads(num_ranks, first)
    assert steps_in(tmp_path) == [1, 2, 3, 4, 5, 6]
    before = records(tmp_path)[:4]
    gs.run_threads(again, second)
    assert records(tmp_path)[:4] == before
    assert steps_in(tmp_path) == list(range(1, 10))
    assert [len(r["rank_loss"]) for r in records(tmp_path, "step")[4:]] == [again] * 5
    times = [record["elapsed_s"] for record in records(tmp_path)]
    assert times == sorted(times)


def test_a_run_may_begin_late(tmp_path):
    def work():
        model = make()
        for step in range(3):
            loss_of(model, rank(), step).backward()
        with quiet(tmp_path, model) as run:
            train(model, run, 5)

    gs.run_threads(2, work)
    assert steps_in(tmp_path) == [4, 5]


# Runs that end early.


def test_an_error_is_in_the_status(tmp_path):
    def work():
        model = make()
        with quiet(tmp_path, model) as run:
            train(model, run, 2)
            raise ValueError("no more data")

    with pytest.raises(ValueError, match="no more data"):
        gs.run_threads(2, work)
    end = status(tmp_path)
    assert (end["state"], end["message"], end["exit_code"]) == ("failed", "no more data", 1)


def test_an_error_outside_of_with_is_in_the_status(tmp_path):
    def work():
        model = make()
        train(model, quiet(tmp_path, model), 2)
        raise ValueError("no more data")

    with pytest.raises(ValueError, match="no more data"):
        alone(work)
    assert status(tmp_path)["message"] == "no more data"


def test_the_failure_of_another_rank_is_in_the_status(tmp_path):
    def work():
        model = make()
        run = quiet(tmp_path, model)
        train(model, run, 4, victim=1)

    with pytest.raises(Death):
        gs.run_threads(2, work)
    end = status(tmp_path)
    assert end["state"] == "failed"
    assert "Death" in end["message"]


def test_another_rank_writes_that_rank_0_was_killed(tmp_path):
    script = tmp_path / "loop.py"
    script.write_text(LOOP.replace("survive=True", ""))
    process = launch(script, str(tmp_path), options=("-n", "2"))
    while not process.stderr.readline().startswith("step 10"):
        pass
    os.kill(ranks_of(process)[0], signal.SIGKILL)
    process.communicate(timeout=120)
    end = status(tmp_path)
    assert (end["state"], end["exit_code"]) == ("failed", 74)
    assert "rank 0" in end["message"]


def test_a_session_that_ends_before_finish_has_stopped(tmp_path):
    def work():
        model = make()
        train(model, quiet(tmp_path, model), 3)

    gs.run_threads(2, work)
    assert status(tmp_path)["state"] == "stopped"
    assert steps_in(tmp_path) == [1, 2, 3]


PREEMPTED = """
import os, signal, sys, torch
import gossamer as gs
gs.initialize_dist()
model = gs.DecentralizedDataParallel(torch.nn.Linear(2, 1), lambda ps: torch.optim.SGD(ps, 0.1))
checkpoints = gs.Checkpoints(sys.argv[1] + "/checkpoints", check_every=1)
checkpoints.handle_signals()
checkpoints.resume(model)
with gs.Run(sys.argv[1], model, every=1, progress=False) as run:
    while model.num_steps < 5:
        loss = model(torch.ones(1, 2)).sum()
        loss.backward()
        run.log(loss)
        if model.num_steps == 2 and len(sys.argv) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        checkpoints.step(model)
"""


def test_a_signal_stops_a_run_that_goes_on_later(tmp_path):
    done = run_python(["-c", PREEMPTED, str(tmp_path), "signal"])
    assert done.returncode == 75, done.stderr
    assert (status(tmp_path)["state"], status(tmp_path)["exit_code"]) == ("stopped", 75)
    assert steps_in(tmp_path) == [1, 2]
    done = run_python(["-c", PREEMPTED, str(tmp_path)])
    assert done.returncode == 0, done.stderr
    assert steps_in(tmp_path) == [1, 2, 3, 4, 5]
    assert status(tmp_path)["state"] == "done"


# Where ranks may be lost.


@pytest.mark.parametrize("algorithm", ["gossip", "allreduce"])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_every_step_is_there_once_when_a_rank_dies(tmp_path, algorithm, victim):
    def work():
        model = make(algorithm=algorithm)
        with quiet(tmp_path, model) as run:
            train(model, run, 12, victim=victim)

    gs.run_threads(3, work, survive=True)
    left = [member for member in range(3) if member != victim]
    assert steps_in(tmp_path) == list(range(1, 13))
    (change,) = records(tmp_path, "members")
    assert (change["lost"], change["joined"], change["members"]) == ([victim], [], left)
    for record in records(tmp_path, "step"):
        assert record["members"] in ([0, 1, 2], left)
        assert len(record["rank_loss"]) == len(record["members"])
    steps = [record["step"] for record in records(tmp_path)]
    assert steps == sorted(steps)
    end = status(tmp_path)
    assert (end["state"], end["members"], end["epoch"]) == ("done", left, 1)
    assert end["last_change"]["lost"] == [victim]
    assert (tmp_path / "report.html").exists()


def test_a_rank_that_dies_before_the_end_of_the_run_costs_no_record(tmp_path):
    def work():
        model = make()
        with quiet(tmp_path, model) as run:
            train(model, run, 6)
            run.evaluation(accuracy=0.5)
            if rank() == 0:
                raise Death

    gs.run_threads(3, work, survive=True)
    assert steps_in(tmp_path) == [1, 2, 3, 4, 5, 6]
    assert [record["step"] for record in records(tmp_path, "eval")] == [6]
    assert records(tmp_path, "final")[0]["world_size"] == 2
    assert status(tmp_path)["state"] == "done"


def test_a_rank_that_has_told_in_vain_tells_later(tmp_path):
    """Rank 0 tells of step 1 after step 2, when rank 1 sees an exchange of step 2 fail."""

    def work():
        model = make()
        if rank() == 1:
            model._survival._session = FailsInStep(2, model)
        with quiet(tmp_path, model) as run:
            while model.num_steps < 4:
                loss = loss_of(model, rank(), model.num_steps)
                loss.backward()
                run.log(loss)
                with model.global_average():
                    pass

    gs.run_threads(2, work, survive=True)
    assert steps_in(tmp_path) == [1, 2, 3, 4]


def test_two_deaths_leave_the_records_to_the_last_rank(tmp_path):
    def work():
        model = make()
        own = rank()
        with quiet(tmp_path, model, every=2) as run:
            while model.num_steps < 12:
                if (own, model.num_steps) in ((0, 3), (1, 7)):
                    raise Death
                loss = loss_of(model, own, model.num_steps)
                loss.backward()
                run.log(loss)

    gs.run_threads(5, work, survive=True)
    assert steps_in(tmp_path) == [2, 4, 6, 8, 10, 12]
    assert [record["lost"] for record in records(tmp_path, "members")] == [[0], [1]]
    assert status(tmp_path)["members"] == [2, 3, 4]


def test_a_run_outlives_a_kill_and_takes_a_rank_in(tmp_path):
    script, folder = tmp_path / "loop.py", tmp_path / "run"
    script.write_text(LOOP)
    process = launch(script, str(folder))
    place = re.search(r"--join (\S+)", process.stderr.readline())
    while not process.stderr.readline().startswith("step 10"):
        pass
    os.kill(ranks_of(process)[0], signal.SIGKILL)
    joining = launch(script, str(folder), options=("-n", "1", "--join", place[1]))
    _, new_errors = joining.communicate(timeout=120)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, joining.returncode) == (0, 0), f"{errors}\n{new_errors}"
    last = records(folder, "final")[0]["step"]
    assert steps_in(folder) == sorted({*range(5, last, 5), last})
    changes = [(r["lost"], r["joined"], r["members"]) for r in records(folder, "members")]
    assert changes == [([0], [], [1, 2]), ([], [3], [1, 2, 3])]
    assert len(records(folder, "step")[-1]["rank_loss"]) == 3
    assert status(folder)["state"] == "done"
