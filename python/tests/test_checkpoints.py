"""Checkpoints of a loop in Python."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy
import pytest
import torch
from conftest import alone, environment, flat, loss_of, make_mlp, rank
from test_optimizers import IN_PYTHON, OPTIMIZERS

import gossamer as gs

SCHEDULE = lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.9)  # noqa: E731


def make(optimizer="adamw", **options):
    return gs.DecentralizedDataParallel(
        make_mlp(),
        (OPTIMIZERS | IN_PYTHON)[optimizer],
        "base-k",
        lr_scheduler_fn=SCHEDULE,
        **options,
    )


def train(model, last):
    while model.num_steps < last:
        loss_of(model, rank(), model.num_steps).backward()


def names_in(folder):
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("optimizer", ["adamw", "rmsprop"])
@pytest.mark.parametrize("waits", [True, False])
def test_a_run_goes_on_bit_for_bit(tmp_path, optimizer, waits):
    def first():
        model, checkpoints = make(optimizer), gs.Checkpoints(tmp_path)
        train(model, 5)
        path = checkpoints.save(model, {"place": 5}, wait=waits)
        assert path == (str(tmp_path / "step-000000005") if waits else None)
        train(model, 9)
        return flat(model).clone(), model.optimizer.param_groups[0]["lr"]

    def second():
        model, checkpoints = make(optimizer), gs.Checkpoints(tmp_path)
        assert checkpoints.resume(model) == {"place": 5}
        assert model.num_steps == 5
        train(model, 9)
        return flat(model).clone(), model.optimizer.param_groups[0]["lr"]

    ends, again = gs.run_threads(3, first), gs.run_threads(3, second)
    for one, other in zip(ends, again, strict=True):
        assert torch.equal(one[0], other[0])
        assert one[1] == other[1]


@pytest.mark.parametrize("size", [2, 8])
def test_another_number_of_ranks_goes_on_from_the_mean(tmp_path, size):
    def first():
        model, checkpoints = make(), gs.Checkpoints(tmp_path)
        train(model, 5)
        checkpoints.save(model)
        with model.global_average():
            return flat(model).clone()

    def second():
        model, checkpoints = make(), gs.Checkpoints(tmp_path)
        with pytest.raises(gs.CheckpointError, match="of 4 ranks"):
            checkpoints.resume(model)
        assert checkpoints.resume(model, reshape="average") == {}
        mean = flat(model).clone()
        train(model, 7)
        return mean, model.num_steps, model.optimizer.param_groups[0]["lr"]

    mean = gs.run_threads(4, first)[0]
    for found, steps, rate in gs.run_threads(size, second):
        assert (found - mean).abs().max() < 1e-6
        assert steps == 7
        assert rate == pytest.approx(0.01 * 0.9**3)
    assert names_in(tmp_path) == ["step-000000005"]


def test_old_checkpoints_go_and_damaged_ones_are_passed_over(tmp_path):
    def first():
        model, checkpoints = make(), gs.Checkpoints(tmp_path, keep=2, every=2, every_s=0)
        while model.num_steps < 8:
            train(model, model.num_steps + 1)
            checkpoints.step(model)
        checkpoints.wait()

    gs.run_threads(2, first)
    assert names_in(tmp_path) == ["step-000000006", "step-000000008"]
    file = tmp_path / "step-000000008" / "python-00001.pt"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    (tmp_path / ".staging-step-000000010-0").mkdir()

    def second():
        model = make()
        gs.Checkpoints(tmp_path).resume(model)
        return model.num_steps

    assert gs.run_threads(2, second) == [6, 6]
    assert names_in(tmp_path) == ["step-000000006", "step-000000008"]


def test_there_may_be_no_checkpoint(tmp_path):
    def work():
        return gs.Checkpoints(tmp_path / "none").resume(make())

    assert gs.run_threads(2, work) == [None, None]


def test_a_folder_that_cannot_be_written_is_told_of_on_all_ranks(tmp_path):
    (tmp_path / "file").write_text("")

    def work():
        model = make()
        train(model, 1)
        with pytest.raises(gs.CheckpointError, match="file"):
            gs.Checkpoints(tmp_path / "file").save(model)
        train(model, 2)
        return model.num_steps

    assert gs.run_threads(2, work) == [2, 2]


def test_a_checkpoint_of_lost_ranks_is_given_up(tmp_path):
    def work():
        own = rank()
        model, checkpoints = make(), gs.Checkpoints(tmp_path, every=2, every_s=0)
        while model.num_steps < 10:
            if own == 1 and model.num_steps == 4:
                raise RuntimeError("this rank dies")
            loss_of(model, own, model.num_steps).backward()
            checkpoints.step(model)
        checkpoints.wait()
        return model.num_steps

    assert [n for n in gs.run_threads(3, work, survive=True) if n is not None] == [10, 10]
    assert names_in(tmp_path)[-1] == "step-000000010"
    assert len(names_in(tmp_path / "step-000000010")) == 5

    def second():
        model = make()
        gs.Checkpoints(tmp_path).resume(model)
        return model.num_steps

    assert gs.run_threads(2, second) == [10, 10]
    # The dead rank may have written into a staging folder after the others had removed it.
    assert not [name for name in names_in(tmp_path) if name.startswith(".")]


def test_a_second_wrapper_may_follow_in_a_session_that_has_saved(tmp_path):
    def work():
        for _ in range(2):
            model = make()
            train(model, 2)
            gs.Checkpoints(tmp_path).save(model)
            model.finish()
        return True

    assert gs.run_threads(2, work, survive=True) == [True, True]


class Augmented(torch.utils.data.Dataset):
    """Changes its samples at random, by three generators."""

    def __len__(self):
        return 48

    def __getitem__(self, i):
        x = torch.full((8,), i / 48.0)
        return x + torch.rand(8) * random.random() * float(numpy.random.rand())


def train_at_random(folder, *saves_at):
    """Train for two epochs with dropout, a scaler and a schedule, and return all that is left."""
    random.seed(rank()), numpy.random.seed(rank()), torch.manual_seed(rank())
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 3))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    model = gs.DecentralizedDataParallel(net, OPTIMIZERS["momentum"], "ring", scaler=scaler)
    schedule = torch.optim.lr_scheduler.StepLR(model.optimizer, 4, 0.5)
    model.register_state("schedule", schedule)
    sampler = gs.ElasticSampler(Augmented(), 4, model, seed=1)
    loader = torch.utils.data.DataLoader(Augmented(), batch_sampler=sampler)
    checkpoints = gs.Checkpoints(folder)
    checkpoints.resume(model)
    while sampler.epoch < 2:
        for x in loader:
            scaler.scale(model(x).square().mean()).backward()
            scaler.update()
            schedule.step()
            if model.num_steps in saves_at:
                checkpoints.save(model)
        if sampler.epoch == 1 and "epoch" in saves_at:
            checkpoints.save(model)
    numbers = [random.random(), float(numpy.random.rand()), float(torch.rand(1))]
    return [
        model.num_steps,
        scaler.get_scale(),
        schedule.get_last_lr(),
        numbers,
        flat(net).tolist(),
    ]


@pytest.mark.parametrize("place", [4, 12, "epoch"])
def test_dropout_and_augmentation_go_on_bit_for_bit(tmp_path, place):
    whole = alone(lambda: train_at_random(tmp_path, place))
    assert whole[:2] == [24, 1024.0 * 2**8]
    assert alone(lambda: train_at_random(tmp_path)) == whole


def test_every_rank_has_random_numbers_of_its_own(tmp_path):
    script = tmp_path / "loop.py"
    script.write_text(
        "import sys, torch, gossamer as gs\n"
        "from conftest import digest\n"
        "from test_checkpoints import train_at_random\n"
        "gs.initialize_dist()\n"
        "torch.set_num_threads(1)\n"
        "ends = [digest(train_at_random(sys.argv[1], *saves_at)) for saves_at in ([4], [])]\n"
        "print('ends', *ends)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "gossamer.launch", "-n", "2", str(script), str(tmp_path / "saved")],
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
    )
    found = [line.split("ends ")[1] for line in done.stdout.splitlines() if "ends " in line]
    (whole, resumed), (whole_1, resumed_1) = (line.split() for line in found)
    assert whole != whole_1
    assert [resumed, resumed_1] == [whole, whole_1]


LOOP = """
import os, sys
import torch
import gossamer as gs
from conftest import loss_of, make_mlp

gs.initialize_dist()
torch.set_num_threads(1)
model = gs.DecentralizedDataParallel(make_mlp(), lambda ps: torch.optim.AdamW(ps), "ring")
checkpoints = gs.Checkpoints(sys.argv[1], every=1, every_s=0, check_every=1)
checkpoints.handle_signals()
checkpoints.resume(model)
print("begins at", model.num_steps, flush=True)
while model.num_steps < 100000:
    loss_of(model, 0, model.num_steps).backward()
    checkpoints.step(model)
"""


@pytest.fixture
def loop(tmp_path):
    script = tmp_path / "loop.py"
    script.write_text(LOOP)

    def start():
        return subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / "saved")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    return start


def test_a_killed_process_leaves_the_last_checkpoint_and_a_signal_saves(tmp_path, loop):
    saved = tmp_path / "saved"
    process = loop()
    assert process.stdout.readline() == "begins at 0\n"
    while not saved.is_dir() or not [n for n in names_in(saved) if n.startswith("step-")]:
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.communicate(timeout=60)
    last = int(re.sub(r"\D", "", [n for n in names_in(saved) if n.startswith("step-")][-1]))
    process = loop()
    begin = int(process.stdout.readline().removeprefix("begins at "))
    assert begin in (last, last + 1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    shutil.rmtree(saved)


def test_a_signal_to_one_rank_saves_and_ends_all(tmp_path):
    script = tmp_path / "loop.py"
    script.write_text(LOOP.replace('"begins at"', 'os.getpid(), "begins at"'))
    process = subprocess.Popen(
        [sys.executable, "-m", "gossamer.launch", "-n", "2", str(script), str(tmp_path / "saved")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    process.stdout.readline()
    os.kill(int(process.stdout.readline().split()[0]), signal.SIGUSR1)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 75, errors
    assert errors.count("has ended with code 75") == 2
    last = [name for name in names_in(tmp_path / "saved") if name.startswith("step-")][-1]
    assert len(names_in(tmp_path / "saved" / last)) == 5


WAITING = """
import signal, sys, time
import gossamer as gs

gs.Checkpoints(sys.argv[1]).handle_signals([signal.SIGUSR1])
print("waits", flush=True)
while True:
    time.sleep(1)
"""


def test_a_later_signal_ends_a_process_that_makes_no_step(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "waits\n"
    num_sent = 0
    while process.poll() is None:
        process.send_signal(signal.SIGUSR1)
        num_sent += 1
        time.sleep(0.2)
    assert process.returncode == -signal.SIGUSR1
    assert num_sent > 1
