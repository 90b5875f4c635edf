"""Runs that lose ranks, and take others in, in a user's own loop."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import Death, environment, flat, loss_of, make_mlp, rank, survivors
from test_optimizers import IN_PYTHON, OPTIMIZERS

import gossamer as gs

EXAMPLE = Path(__file__).parents[2] / "examples" / "python" / "survive.py"

ALGORITHMS = {
    "gossip": "gossip",
    "allreduce": "allreduce",
    "outer": {"name": "outer", "every": 4},
    "static ring": "gossip",
}


class Total:
    """A state of the user's: the steps so far, and the last step to make."""

    def __init__(self):
        self.total, self.last = 0, None

    def state_dict(self):
        return {"total": self.total, "last": self.last}

    def load_state_dict(self, state):
        self.total, self.last = state["total"], state["last"]


@pytest.mark.parametrize("optimizer", ["adamw", "rmsprop"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("victim", [0, 2])
def test_a_loop_goes_on_when_a_rank_dies(algorithm, optimizer, victim):
    topology = "base-k" if algorithm == "gossip" else "ring"

    def train():
        own = rank()
        changes = []
        model = gs.DecentralizedDataParallel(
            make_mlp(),
            (OPTIMIZERS | IN_PYTHON)[optimizer],
            topology,
            algorithm=ALGORITHMS[algorithm],
        )
        model.session.on_change(changes.append)
        while model.num_steps < 12:
            if own == victim and model.num_steps == 5:
                raise Death
            loss_of(model, own, model.num_steps).backward()
        with model.global_average():
            mean = flat(model).clone()
        return model.session.members, changes, mean, model.session.epoch

    ends = survivors(3, train)
    assert len(ends) == 2
    left = [m for m in range(3) if m != victim]
    for members, changes, mean, epoch in ends:
        assert members == left
        assert [(c.lost, c.joined, c.members) for c in changes] == [([victim], [], left)]
        # The others may be steps behind the dead rank, and under outer a period ahead.
        assert 0 < changes[0].step <= 12
        assert epoch == 1
        assert torch.equal(mean, ends[0][2])
        assert bool(mean.isfinite().all())


@pytest.mark.parametrize("victim", [0, 1])
def test_all_reduce_loses_the_gradients_of_the_dead_rank_alone(victim):
    """The survivors' step is that of a run of two ranks."""

    def train(num_ranks, dies):
        def work():
            own = rank()
            data = own if own != num_ranks - 1 else 2
            model = gs.DecentralizedDataParallel(
                make_mlp(), OPTIMIZERS["sgd"], algorithm="allreduce"
            )
            for step in range(4):
                if own == dies and step == 0:
                    raise Death
                loss_of(model, data, step).backward()
            return flat(model).clone()

        return work

    lost = survivors(3, train(3, victim))
    data = [0, 2] if victim == 1 else [1, 2]

    def plain():
        model = gs.DecentralizedDataParallel(make_mlp(), OPTIMIZERS["sgd"], algorithm="allreduce")
        for step in range(4):
            loss_of(model, data[rank()], step).backward()
        return flat(model).clone()

    expected = gs.run_threads(2, plain)
    for found in lost:
        assert (found - expected[0]).abs().max() < 1e-6


def test_no_rank_makes_up_for_steps_of_a_lost_rank_alone():
    class IsAhead:
        """The session of a rank that has made five steps more, and dies when all know it."""

        def __init__(self, session):
            self._session = session

        def __getattr__(self, name):
            return getattr(self._session, name)

        def reconfigure(self, step):
            self._session.reconfigure(step + 5)
            raise Death

    def train():
        own = rank()
        model = gs.DecentralizedDataParallel(make_mlp(), OPTIMIZERS["sgd"], "base-k")
        changes = []
        model.session.on_change(changes.append)
        if own == 1:
            model._survival._session = IsAhead(model.session)
        while model.num_steps < 12:
            if own == 3 and model.num_steps == 2:
                raise Death
            loss_of(model, own, model.num_steps).backward()
        return [c.members for c in changes], changes[-1].step

    for members, step in survivors(4, train):
        assert members[-1] == [0, 2]
        # A rank is at most a step ahead, as the topology has two rounds.
        assert step <= 5


@pytest.mark.parametrize("way", ["compile", "module", "eval"])
def test_a_rank_has_the_model_of_the_others_before_its_first_backward_pass(way, monkeypatch):
    if way == "compile":
        # What torch.compile(model) has the wrapper's forward() see.
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)

    def work():
        model = gs.DecentralizedDataParallel(make_mlp(), OPTIMIZERS["sgd"], "base-k")
        forward = {"compile": model, "module": model.module, "eval": model}[way]
        model.train(way != "eval")
        with pytest.raises(gs.ConfigError, match="a loss of model"):
            forward(torch.ones(2, 8)).sum().backward()
        return True

    assert survivors(1, work) == [True]


class FailsInStep:
    """The session of a rank that sees an exchange of a step fail when the others have left it."""

    def __init__(self, step, model):
        self._step, self._model, self._session = step, model, model.session

    def __getattr__(self, name):
        return getattr(self._session, name)

    def check(self):
        if self._model.num_steps == self._step and self._session.epoch == 0:
            time.sleep(0.2)
            raise gs.PeerLost("for the test")
        self._session.check()


def test_a_call_that_fails_on_ranks_that_have_left_a_step_fails_on_all():
    def train():
        model = gs.DecentralizedDataParallel(make_mlp(), OPTIMIZERS["sgd"], "base-k")
        if rank() == 1:
            model._survival._session = FailsInStep(2, model)
        sums = []
        while model.num_steps < 4:
            loss_of(model, rank(), model.num_steps).backward()
            try:
                sums += model.session.sum([1.0])
            except gs.PeerLost:
                sums.append(0.0)
            with model.global_average():
                pass
        return sums

    assert survivors(2, train) == [[2.0, 0.0, 2.0, 2.0]] * 2


@pytest.mark.parametrize("moment", ["before", "inside"])
def test_an_evaluation_begins_anew_when_a_rank_dies(moment):
    def train():
        own = rank()
        model = gs.DecentralizedDataParallel(make_mlp(), OPTIMIZERS["sgd"], "base-k")
        for step in range(6):
            loss_of(model, own, step).backward()
            if own == 1 and step == 3 and moment == "before":
                raise Death
            with model.global_average():
                if own == 1 and step == 3:
                    raise Death
                mean = flat(model).clone()
        return mean, model.num_steps

    ends = survivors(3, train)
    assert [steps for _, steps in ends] == [6, 6]
    assert torch.equal(ends[0][0], ends[1][0])


@pytest.mark.parametrize("form", ["folder", "dict"])
@pytest.mark.parametrize("algorithm", ["gossip", "allreduce"])
def test_a_run_goes_on_from_what_it_has_saved(algorithm, form, tmp_path):
    """The ranks load before their first step, as a run does that begins again."""
    states = {}

    def wrapped():
        return gs.DecentralizedDataParallel(
            make_mlp(), OPTIMIZERS["adamw"], "base-k", algorithm=algorithm
        )

    def train(model, until):
        while model.num_steps < until:
            loss_of(model, rank(), model.num_steps).backward()

    def first():
        model = wrapped()
        train(model, 3)
        model.save(tmp_path)
        states[rank()] = model.state_dict()
        train(model, 6)
        return flat(model)

    def second():
        model = wrapped()
        if form == "folder":
            model.load(tmp_path)
        else:
            model.load_state_dict(states[rank()])
        train(model, 6)
        return flat(model)

    assert all(map(torch.equal, survivors(3, first), survivors(3, second)))


def test_before_the_first_step_all_ranks_save_the_values_of_rank_0():
    def work():
        module = make_mlp()
        with torch.no_grad():
            module[0].bias.fill_(rank())
        model = gs.DecentralizedDataParallel(module, OPTIMIZERS["sgd"])
        return model.state_dict()["0.bias"]

    assert all(bool((bias == 0).all()) for bias in survivors(3, work))


def test_what_a_rank_writes_before_the_first_step_is_its_own():
    def work():
        model = gs.DecentralizedDataParallel(make_mlp(), OPTIMIZERS["sgd"], algorithm="local")
        with model.write_parameters(), torch.no_grad():
            model.module[0].bias.fill_(rank())
        own = model.module[0].bias.detach().clone()
        model(torch.ones(1, 8))
        assert torch.equal(own, model.module[0].bias)
        return own

    assert [float(bias[0]) for bias in survivors(3, work)] == [0, 1, 2]


def test_parameters_that_are_trained_later_are_refused():
    def work():
        module = make_mlp()
        module[0].requires_grad_(False)
        model = gs.DecentralizedDataParallel(module, OPTIMIZERS["sgd"])
        loss_of(model, rank(), 0).backward()
        module[0].requires_grad_(True)
        model.optimizer.add_param_group({"params": list(module[0].parameters())})
        with pytest.raises(gs.ConfigError, match=r"trained only now \(0.weight, 0.bias\)"):
            loss_of(model, rank(), 1).backward()
        return True

    assert survivors(2, work) == [True, True]


def test_a_second_wrapper_comes_after_the_end_of_the_first():
    def work():
        own = rank()
        first = gs.DecentralizedDataParallel(make_mlp(), OPTIMIZERS["sgd"], "base-k")
        loss_of(first, own, 0).backward()
        with pytest.raises(gs.ConfigError, match="another wrapper trains in it"):
            gs.DecentralizedDataParallel(make_mlp(), OPTIMIZERS["sgd"], "base-k")
        first.finish()
        second = gs.DecentralizedDataParallel(make_mlp(), OPTIMIZERS["adamw"], "base-k")
        for step in range(4):
            if own == 1 and step == 2:
                raise Death
            loss_of(second, own, step).backward()
        with second.global_average():
            return flat(second)

    ends = survivors(3, work)
    assert len(ends) == 2
    assert torch.equal(ends[0], ends[1])


# The ranks compare their clocks after step 1, and write the file after step 7.
@pytest.mark.parametrize("dies_after", [0, 1, 5, 6])
@pytest.mark.parametrize("algorithm", ["gossip", "allreduce"])
def test_a_timeline_has_the_ranks_that_are_left(algorithm, dies_after, tmp_path):
    path = tmp_path / "timeline.json"

    def train():
        own = rank()
        options = {"timeline": str(path), "timeline_steps": [3, 7]}
        model = gs.DecentralizedDataParallel(
            make_mlp(), OPTIMIZERS["adamw"], "base-k", algorithm=algorithm, options=options
        )
        while model.num_steps < 12:
            if own == 0 and model.num_steps == dies_after:
                raise Death
            loss_of(model, own, model.num_steps).backward()
            with model.global_average():
                pass
        model.finish()

    survivors(3, train)
    events = json.loads(path.read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["rank 0, member 1", "rank 1, member 2"]
    for own in (0, 1):
        spans = [event for event in events if event["ph"] == "X" and event["pid"] == own]
        steps = {span["args"]["step"] for span in spans if span["name"].startswith("backward")}
        assert steps == {4, 5, 6, 7}


def test_what_does_not_go_together_is_refused():
    def work():
        with pytest.raises(gs.ConfigError, match="bfloat16"):
            gs.DecentralizedDataParallel(
                make_mlp(), OPTIMIZERS["sgd"], scaler=torch.amp.GradScaler("cpu")
            )
        with pytest.raises(gs.ConfigError, match="async_gossip"):
            gs.DecentralizedDataParallel(make_mlp(), OPTIMIZERS["sgd"], algorithm="async_gossip")
        return True

    assert survivors(1, work) == [True]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("join='127.0.0.1:29400'", "with survive=True"),
        ("survive=True", "gossamer.launch"),
        ("survive=True, min_ranks='all'", "majority"),
        ("survive=True, min_ranks=-1", "0 or more"),
        ("survive=True, silence_s=0", "silence_s"),
    ],
)
def test_options_that_cannot_be_are_refused(arguments, text):
    code = f"import gossamer as gs\ngs.initialize_dist({arguments})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert text in done.stderr


# Ranks that are processes.

LOOP = """
import os, sys, time
import torch
import gossamer as gs
from conftest import flat, loss_of, make_mlp
from test_survival import Total

# When to evaluate; "loads": after steps, with batches that processes fetch ahead.
evaluates = sys.argv[1]
# For so many steps. Where a number of ranks follows: so many steps after there are these ranks.
steps, awaited = int(sys.argv[2]), int((sys.argv[3:] or ["0"])[0])
rank, size = gs.initialize_dist(survive=True)
torch.set_num_threads(1)
model = gs.DecentralizedDataParallel(
    make_mlp(), lambda ps: torch.optim.AdamW(ps, lr=0.01), "base-k",
    lr_scheduler_fn=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.99),
)
total = Total()
model.register_state("total", total)
me = os.environ.get("GOSSAMER_RANK", "new")
evaluations = []
total.last = None if awaited else steps

def batches():
    if evaluates != "loads":
        while True:
            yield [0]
    sampler = gs.ElasticSampler(200000, 2, model)
    # The others' loaders have fetched 4 batches more, before which a new rank has none.
    yield from torch.utils.data.DataLoader(range(200000), batch_sampler=sampler, num_workers=2)

def note(change):
    if len(change.members) == awaited:
        total.last = change.step + steps

model.session.on_change(note)

lost = 0

def sum_of_ranks():
    # Right after a rank has joined, and before its first step, no rank makes the call.
    global lost
    try:
        model.session.sum([1.0])
    except gs.PeerLost:
        lost += 1

def evaluate():
    with model.global_average() as distance:
        evaluations.append(model.num_steps)

for _ in batches():
    if total.last is None:
        # Nobody reads yet what the ranks print.
        time.sleep(0.01)
    if evaluates == "before" and model.num_steps % 3 == 0:
        evaluate()
    sum_of_ranks()
    loss_of(model, max(rank, 0), model.num_steps).backward()
    total.total += 1
    if evaluates in ("after", "loads") and model.num_steps % 3 == 0:
        evaluate()
    print(me, "step", model.num_steps, flush=True)
    if model.num_steps == total.last:
        break
with model.global_average():
    mean = flat(model).double().sum().item()
rate = model.optimizer.param_groups[0]["lr"]
assert lost <= (16 if evaluates == "loads" else 3)
end = f"{model.num_steps} {model.session.members} {mean:.9f} {rate:.9f} {total.total}"
print(me, "end", end, flush=True)
"""


def launch(script, *arguments, options=("-n", "3")):
    command = [sys.executable, "-m", "gossamer.launch", *options, str(script), *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "loop.py"
    path.write_text(LOOP)
    return path


def ranks_of(process):
    """Return the processes of a launcher's ranks, by rank."""
    with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as children:
        return [int(pid) for pid in children.read().split()]


def ends_of(text):
    return dict(re.findall(r"^(\w+) end (.*)$", text, re.MULTILINE))


def test_a_killed_process_costs_the_example_no_other():
    """The example runs on, and learns, when a rank is killed."""
    process = launch(EXAMPLE, "--steps", "300", "--pause-s", "0.01")
    out = process.stdout.readline()
    assert out.startswith("step 100:"), out
    ranks = ranks_of(process)
    os.kill(ranks[1], signal.SIGKILL)
    rest, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "signal 9 (Killed) has ended rank 1; 2 run on" in errors
    assert "2 ranks go on" in errors
    assert rest.count("lost=[1], joined=[], members=[0, 2]") == 2
    accuracy, steps = re.search(r"accuracy of the mean (\S+) after (\d+) steps", rest).groups()
    assert int(steps) == 300
    assert float(accuracy) > 0.85


def test_a_rank_that_joins_with_another_model_costs_no_other(script, tmp_path):
    """A rank alone has no majority with one that does not fit."""
    other = tmp_path / "other.py"
    other.write_text(LOOP.replace("make_mlp(), lambda", "torch.nn.Linear(8, 3), lambda"))
    process = launch(script, "never", "30", "2", options=("-n", "1"))
    place = re.search(r"--join (\S+)", process.stderr.readline())
    for path, code in ((other, 2), (script, 0)):
        joining = launch(path, "never", "30", options=("-n", "1", "--join", place[1]))
        _, new_errors = joining.communicate(timeout=120)
        assert joining.returncode == code, new_errors
        assert ("the ranks differ in their models" in new_errors) == (code == 2)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert ends_of(out)["0"].split(" ", 1)[1].startswith("[0, 2] ")


# Those that join one after the other evaluate after steps, too.
@pytest.mark.parametrize("evaluates", ["before", pytest.param("after", marks=pytest.mark.wide)])
def test_a_rank_that_joins_has_all_that_the_others_have(script, evaluates):
    process = launch(script, evaluates, "50", "2", options=("-n", "1"))
    line = process.stderr.readline()
    place = re.search(r"--join (\S+)", line)
    assert place, line
    joining = launch(script, evaluates, "50", options=("-n", "1", "--join", place[1]))
    new, new_errors = joining.communicate(timeout=120)
    out, errors = process.communicate(timeout=120)
    assert (process.returncode, joining.returncode) == (0, 0), f"{errors}\n{new_errors}"
    ends = ends_of(out + new)
    assert set(ends) == {"0", "new"}
    assert ends["0"] == ends["new"]
    num_steps, members = ends["0"].split(" ", 1)
    assert members.startswith("[0, 1] ")
    assert members.endswith(f" {num_steps}")
    steps = [int(step) for step in re.findall(r"^new step (\d+)$", new, re.MULTILINE)]
    first = int(num_steps) - 49
    assert steps == list(range(first, int(num_steps) + 1))
    assert first > 1


def test_a_timeline_has_a_rank_that_has_joined(tmp_path):
    script, path = tmp_path / "loop.py", tmp_path / "timeline.json"
    options = {"timeline": str(path), "timeline_steps": [0, 1000000]}
    script.write_text(LOOP.replace('"base-k",', f'"base-k", options={options},'))
    process = launch(script, "after", "20", "2", options=("-n", "1"))
    place = re.search(r"--join (\S+)", process.stderr.readline())
    joining = launch(script, "after", "20", options=("-n", "1", "--join", place[1]))
    _, new_errors = joining.communicate(timeout=120)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, joining.returncode) == (0, 0), f"{errors}\n{new_errors}"
    events = json.loads(path.read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["rank 0, member 0", "rank 1, member 1"]
    steps = [
        {
            e["args"]["step"]
            for e in events
            if e["ph"] == "X" and e["pid"] == r and "step" in e["args"]
        }
        for r in (0, 1)
    ]
    # The last 20 steps are those of both ranks.
    assert max(steps[0]) == max(steps[1])
    assert len(steps[1]) >= 20


def test_ranks_that_join_one_after_the_other_end_with_the_others(script):
    """They may join before the steps of two batches, and the second while the first is silent."""
    process = launch(script, "loads", "30", "3", options=("-n", "1"))
    place = re.search(r"--join (\S+)", process.stderr.readline())
    options = ("-n", "2", "--join", place[1])
    joining = launch(script, "loads", "30", "3", options=options)
    new, new_errors = joining.communicate(timeout=120)
    out, errors = process.communicate(timeout=120)
    assert (process.returncode, joining.returncode) == (0, 0), f"{errors}\n{new_errors}"
    ends = re.findall(r"^\w+ end (.*)$", out + new, re.MULTILINE)
    assert len(ends) == 3
    assert len(set(ends)) == 1
    num_steps, members = ends[0].split(" ", 1)
    assert members.startswith("[0, 1, 2] ")
    assert members.endswith(f" {num_steps}")


def test_a_rank_that_joins_must_survive(tmp_path):
    path = tmp_path / "alone.py"
    path.write_text("import gossamer as gs\ngs.initialize_dist()\n")
    process = launch(path, options=("-n", "1", "--join", "127.0.0.1:1"))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "allowed: survive=True" in errors


def test_ranks_end_with_their_launcher(script):
    process = launch(script, "after", "1000000", options=("-n", "1"))
    assert "step" in process.stdout.readline()
    ranks = ranks_of(process)
    assert len(ranks) == 1
    process.kill()
    process.communicate(timeout=30)
    end = time.monotonic() + 20
    while any(os.path.exists(f"/proc/{pid}/exe") and _is_alive(pid) for pid in ranks):
        assert time.monotonic() < end
        time.sleep(0.05)


def _is_alive(pid):
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_launcher_passes_signals_and_codes_on(tmp_path):
    path = tmp_path / "fails.py"
    path.write_text(
        "import os, signal, sys, time\n"
        "if os.environ['GOSSAMER_RANK'] == '0':\n    sys.exit(7)\n"
        "def end(*_):\n    sys.exit(9)\n"
        "signal.signal(signal.SIGTERM, end)\nprint('waits', flush=True)\ntime.sleep(60)\n"
    )
    process = launch(path, options=("-n", "2"))
    assert process.stdout.readline() == "waits\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert process.returncode in (7, 9)
    assert "rank 0 has ended with code 7" in errors
    assert "rank 1 has ended with code 9" in errors


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("-n", "0"), "must be 1 or more"),
        (("-n", "1", "--hosts", "2"), "needs --rendezvous"),
        (("-n", "1", "--join", "a:1", "--rendezvous", "b:1"), "without --rendezvous"),
    ],
)
def test_the_launcher_refuses_options(tmp_path, options, text):
    process = launch(tmp_path / "none.py", options=options)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert text in errors
