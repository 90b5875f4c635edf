"""join() of the drop-in: ranks with different numbers of batches, against PyTorch's own."""

from __future__ import annotations

import itertools
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from conftest import batch, flat, make_mlp, rank
from test_optimizers import IN_PYTHON, OPTIMIZERS
from torch.distributed.algorithms.join import Join

import gossamer as gs
from gossamer.compat.ddp import DistributedDataParallel

NUM_BATCHES = (6, 4, 0)
ALL = OPTIMIZERS | IN_PYTHON
# Optimizers, and whether gradients are divided by the number of all ranks.
CASES = list(itertools.product(["sgd", "momentum", "adamw", "rmsprop"], [True, False]))


def make_net():
    """Make a model with buffers that every forward pass changes."""
    net = make_mlp()
    return torch.nn.Sequential(net[0], torch.nn.BatchNorm1d(16), *net[1:]).double()


def loss_on(model, rank, step):
    x, y = (tensor.double() for tensor in batch(rank, step))
    return torch.nn.functional.mse_loss(model(x), y)


def epoch(model, optimizer, rank, num_batches=NUM_BATCHES, **how):
    with model.join(**how):
        for step in range(num_batches[rank]):
            optimizer.zero_grad()
            if step % 2:
                with model.no_sync():
                    loss_on(model, rank, 100 + step).backward()
            loss_on(model, rank, step).backward()
            optimizer.step()


def train(kind, name, divides, rank):
    model = kind(make_net())
    optimizer = ALL[name](list(model.parameters()))
    epoch(model, optimizer, rank, divide_by_initial_world_size=divides)
    return {key: value.clone() for key, value in model.module.state_dict().items()}


THEIRS = """
import sys, torch, test_ddp_join as t
rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
torch.distributed.init_process_group(
    "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=3
)
kind = torch.nn.parallel.DistributedDataParallel
torch.save([t.train(kind, *case, rank) for case in t.CASES], f"{folder}/{rank}.pt")
torch.distributed.destroy_process_group()
"""


def test_all_reduce_is_pytorchs_join(tmp_path):
    path = os.pathsep.join([str(pathlib.Path(__file__).parent), *sys.path])
    command = [sys.executable, "-c", THEIRS]
    processes = [
        subprocess.Popen([*command, str(r), str(tmp_path)], env=os.environ | {"PYTHONPATH": path})
        for r in range(3)
    ]
    assert [process.wait(timeout=300) for process in processes] == [0, 0, 0]
    theirs = [torch.load(tmp_path / f"{r}.pt") for r in range(3)]
    for c, case in enumerate(CASES):
        ours = gs.run_threads(3, lambda case=case: train(DistributedDataParallel, *case, rank()))
        for r, key in itertools.product(range(3), ours[0]):
            difference = (ours[r][key].double() - theirs[r][c][key].double()).abs().max()
            assert difference < 1e-6, (case, r, key, difference)


@pytest.mark.parametrize("name", ["momentum", "adamw", "amsgrad"])
def test_models_stay_equal_in_epochs_after_an_uneven_one(name):
    """The ranks that have the last batch change: states go both ways, and to new optimizers."""

    def work():
        model = DistributedDataParallel(make_net())
        optimizer = ALL[name](list(model.parameters()))
        for num_batches in [NUM_BATCHES, (1, 2, 3), (2, 2, 2)]:
            epoch(model, optimizer, rank(), num_batches)
        return flat(model).clone()

    ends = gs.run_threads(3, work)
    assert all(torch.equal(end, ends[0]) for end in ends)


@pytest.mark.parametrize(
    "algorithm", ["gossip", {"name": "outer", "every": 2}, "gradient_tracking"]
)
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_ranks_without_a_batch_mix_on(algorithm, name):
    def work():
        topology = None if isinstance(algorithm, dict) else "ring"
        model = DistributedDataParallel(make_mlp(), algorithm=algorithm, topology=topology)
        optimizer = ALL[name](list(model.parameters()))
        begin = flat(model).clone()
        for _ in range(2):
            with model.join():
                for step in range(NUM_BATCHES[rank()]):
                    optimizer.zero_grad()
                    loss_of_step(model, step).backward()
                    optimizer.step()
        with model.global_average():
            mean = flat(model).clone()
        return model.metrics()["steps"], mean, (mean - begin).abs().max()

    ends = gs.run_threads(3, work)
    assert [steps for steps, *_ in ends] == [12] * 3
    assert all(torch.equal(mean, ends[0][1]) for _, mean, _ in ends)
    assert all(moved > 0.01 for *_, moved in ends)


def loss_of_step(model, step):
    x, y = batch(rank(), step)
    return torch.nn.functional.mse_loss(model(x), y)


def test_all_ranks_may_end_with_the_first():
    def work():
        model = DistributedDataParallel(make_net())
        optimizer = ALL["sgd"](list(model.parameters()))
        with pytest.raises(RuntimeError, match="used all of"):
            epoch(model, optimizer, rank(), (3, 5), throw_on_early_termination=True)
        return model.metrics()["steps"]

    assert gs.run_threads(2, work) == [3, 3]


def test_equal_numbers_of_batches_end_without_an_error():
    def work():
        model = DistributedDataParallel(make_net())
        epoch(
            model,
            ALL["sgd"](list(model.parameters())),
            rank(),
            (3, 3),
            throw_on_early_termination=True,
        )
        return model.metrics()["steps"]

    assert gs.run_threads(2, work) == [3, 3]


def test_weights_of_batches_count_inside_of_join():
    def work():
        model = DistributedDataParallel(make_mlp().double())
        optimizer = ALL["sgd"](list(model.parameters()))
        with model.join():
            for step in range((2, 1)[rank()]):
                optimizer.zero_grad()
                model.backward_weight(1 + rank())
                loss_on(model, rank(), step).backward()
                optimizer.step()
        return flat(model).clone()

    plain = make_mlp().double()
    own = ALL["sgd"](list(plain.parameters()))
    for step, weights in enumerate([(1 / 3, 2 / 3), (1.0,)]):
        own.zero_grad()
        sum(w * loss_on(plain, r, step) for r, w in enumerate(weights)).backward()
        own.step()
    for end in gs.run_threads(2, work):
        assert (end - flat(plain)).abs().max() < 1e-6


def test_what_join_cannot_do_is_said():
    def work():
        model = DistributedDataParallel(make_mlp())
        optimizer = ALL["sgd"](list(model.parameters()))
        scaler = torch.amp.GradScaler("cpu")
        with pytest.raises(gs.ConfigError, match="gradients of different scales"), model.join():
            scaler.scale(loss_of_step(model, 0)).backward()
            scaler.step(optimizer)
        with pytest.raises(gs.ConfigError, match="inside of join"), model.join(), model.join():
            pass
        with pytest.raises(gs.ConfigError, match="which has no process group"):
            Join([model])
        model.finish()
        return True

    assert gs.run_threads(1, work) == [True]


def test_layers_that_begin_inside_of_join_are_refused():
    def work():
        net = make_mlp()
        net[0].requires_grad_(False)
        model = DistributedDataParallel(net)
        with pytest.raises(gs.ConfigError, match="before join"), model.join():
            net[0].requires_grad_(True)
            model(batch(0, 0)[0])
        return True

    assert gs.run_threads(1, work) == [True]
