"""The drop-in in runs that lose ranks."""

from __future__ import annotations

import re

import pytest
import torch
from conftest import Death, flat, loss_of, make_mlp, rank, survivors
from test_optimizers import IN_PYTHON, OPTIMIZERS
from test_survival import ALGORITHMS, ends_of, launch

import gossamer as gs
from gossamer.compat.ddp import DistributedDataParallel

ALL = OPTIMIZERS | IN_PYTHON
NUM_STEPS = 12


def train(model, optim_fn, dies="", victim=0, data=None):
    optimizer = optim_fn(list(model.parameters()))
    own = rank()
    for step in range(NUM_STEPS):
        if own == victim and step == 5 and dies == "before":
            raise Death
        optimizer.zero_grad()
        loss = loss_of(model, own if data is None else data[own], step)
        if own == victim and step == 5 and dies == "after forward":
            raise Death
        loss.backward()
        if own == victim and step == 5 and dies == "after backward":
            raise Death
        optimizer.step()
    return model


@pytest.mark.parametrize("dies", ["before", "after forward", "after backward"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("optimizer", "victim"), [("adamw", 0), ("rmsprop", 2), ("sgd", 1)])
def test_a_loop_goes_on_when_a_rank_dies(algorithm, optimizer, victim, dies):
    topology = "base-k" if algorithm == "gossip" else "ring"

    def work():
        model = DistributedDataParallel(
            make_mlp(), algorithm=ALGORITHMS[algorithm], topology=topology
        )
        train(model, ALL[optimizer], dies, victim)
        own = flat(model).clone()
        with model.global_average():
            mean = flat(model).clone()
        return model.session.members, model.num_steps, own, mean

    ends = survivors(3, work)
    assert len(ends) == 2
    for members, steps, own, mean in ends:
        assert members == [m for m in range(3) if m != victim]
        assert steps == NUM_STEPS
        assert torch.equal(mean, ends[0][3])
        assert bool(mean.isfinite().all())
        assert algorithm != "allreduce" or torch.equal(own, ends[0][2])


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_all_reduce_loses_the_gradients_of_the_dead_rank_alone(optimizer):
    def with_a_death():
        model = DistributedDataParallel(make_mlp())
        own = rank()
        optimizer_ = ALL[optimizer](list(model.parameters()))
        for step in range(4):
            if own == 1 and step == 0:
                raise Death
            optimizer_.zero_grad()
            loss_of(model, own, step).backward()
            optimizer_.step()
        return flat(model).clone()

    def plain():
        model = DistributedDataParallel(make_mlp())
        own = ALL[optimizer](list(model.parameters()))
        for step in range(4):
            own.zero_grad()
            loss_of(model, (0, 2)[rank()], step).backward()
            own.step()
        return flat(model).clone()

    expected = gs.run_threads(2, plain)
    for found in survivors(3, with_a_death):
        assert (found - expected[0]).abs().max() < 1e-6


def test_several_optimizers_and_deaths():
    def work():
        net = make_mlp()
        model = DistributedDataParallel(net, algorithm="gossip", topology="base-k")
        me = rank()
        dies = {4: 3, 3: 7}.get(me)
        own = [torch.optim.SGD(net[0].parameters(), lr=0.05), ALL["adamw"](net[2].parameters())]
        for step in range(NUM_STEPS):
            if step == dies:
                raise Death
            loss_of(model, me, step).backward()
            for optimizer in own:
                optimizer.step()
                optimizer.zero_grad()
        with model.global_average():
            return model.num_steps, flat(model).clone()

    ends = survivors(5, work)
    assert len(ends) == 3
    assert all(steps == 2 * NUM_STEPS and torch.equal(end, ends[0][1]) for steps, end in ends)


def test_micro_batches_and_a_rank_that_leaves_out_a_batch():
    def work():
        own = rank()
        model = DistributedDataParallel(make_mlp())
        optimizer = ALL["momentum"](list(model.parameters()))
        for step in range(NUM_STEPS):
            if own == 1 and step == 6:
                raise Death
            optimizer.zero_grad()
            with model.no_sync():
                loss_of(model, own, 100 + step).backward()
            if own == 0 and step == 7:
                model.finish_step()
            else:
                loss_of(model, own, step).backward()
            optimizer.step()
        return flat(model).clone()

    ends = survivors(3, work)
    assert len(ends) == 2
    assert torch.equal(ends[0], ends[1])


def test_what_does_not_go_together_is_refused():
    def work():
        net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
        with pytest.raises(gs.ConfigError, match="allowed: broadcast_buffers=False"):
            DistributedDataParallel(net)
        DistributedDataParallel(net, broadcast_buffers=False).finish()
        net = make_mlp()
        net[0].requires_grad_(False)
        model = DistributedDataParallel(net)
        optimizer = ALL["sgd"](list(model.parameters()))
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(loss_of(model, rank(), 0)).backward()
        with pytest.raises(gs.ConfigError, match="allowed: bfloat16"):
            scaler.step(optimizer)
        with pytest.raises(gs.ConfigError, match="no rank may end earlier"), model.join():
            pass
        net[0].requires_grad_(True)
        with pytest.raises(gs.ConfigError, match="trained only now"):
            loss_of(model, rank(), 1)
        return True

    assert survivors(2, work) == [True, True]


LOOP = """
import os, sys, time
import torch
import gossamer as gs
from conftest import flat, loss_of, make_mlp
from gossamer.compat.ddp import DistributedDataParallel
from test_survival import Total

algorithm, waits = sys.argv[1], sys.argv[2:] == ["waits"]
rank, _ = gs.initialize_dist(survive=True)
torch.set_num_threads(1)
model = DistributedDataParallel(make_mlp(), algorithm=algorithm)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
total = Total()
model.register_state("total", total)
last = None
if not waits:
    last = model.num_steps + 50
    # A rank that joins takes the numbers of the others, not its own.
    optimizer.param_groups[0]["lr"] = 1.0

def note(change):
    global last
    if waits and change.joined:
        last = change.step + 50

model.session.on_change(note)
while last is None or model.num_steps < last:
    if last is None:
        # The other rank needs the processor until it joins.
        time.sleep(0.01)
    optimizer.zero_grad()
    loss_of(model, max(rank, 0), model.num_steps).backward()
    optimizer.step()
    total.total += 1
    if model.num_steps % 3 == 0:
        with model.global_average():
            pass
own = flat(model).double().sum().item() if algorithm == "allreduce" else 0.0
with model.global_average():
    mean = flat(model).double().sum().item()
updates = {int(state["step"]) for state in optimizer.state.values()}
rate = optimizer.param_groups[0]["lr"]
end = f"{model.num_steps} {updates} {model.session.members} {own:.9f} {mean:.9f} {rate}"
end += f" {total.total}"
print(os.environ.get("GOSSAMER_RANK", "new"), "end", end, flush=True)
"""


# Under gossip, test_survival.py has ranks that join.
@pytest.mark.parametrize("algorithm", ["allreduce", pytest.param("gossip", marks=pytest.mark.wide)])
def test_a_rank_that_joins_has_all_that_the_others_have(algorithm, tmp_path):
    script = tmp_path / "loop.py"
    script.write_text(LOOP)
    process = launch(script, algorithm, "waits", options=("-n", "1"))
    place = re.search(r"--join (\S+)", process.stderr.readline())
    joining = launch(script, algorithm, options=("-n", "1", "--join", place[1]))
    new, new_errors = joining.communicate(timeout=120)
    out, errors = process.communicate(timeout=120)
    assert (process.returncode, joining.returncode) == (0, 0), f"{errors}\n{new_errors}"
    ends = ends_of(out + new)
    assert set(ends) == {"0", "new"}
    assert ends["0"] == ends["new"]
    num_steps, updates, _ = ends["0"].split(" ", 2)
    assert updates == f"{{{num_steps}}}"
