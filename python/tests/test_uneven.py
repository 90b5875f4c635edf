"""Ranks that have different numbers of batches."""

from __future__ import annotations

import threading

import pytest
import torch
from conftest import flat, loss_of, make_mlp, rank
from test_ddp import mean_loss
from test_optimizers import IN_PYTHON, OPTIMIZERS

import gossamer as gs

NUM_BATCHES = (6, 4, 0)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "rmsprop"])
def test_allreduce_is_the_mean_over_ranks_that_have_a_batch(optimizer):
    optim_fn = (OPTIMIZERS | IN_PYTHON)[optimizer]

    def train():
        model = gs.DecentralizedDataParallel(make_mlp(), optim_fn, algorithm="allreduce")
        with model.join():
            for step in range(NUM_BATCHES[rank()]):
                loss_of(model, rank(), step).backward()
        return flat(model).clone(), model.num_steps

    plain = make_mlp()
    own = optim_fn(list(plain.parameters()))
    for step in range(max(NUM_BATCHES)):
        own.zero_grad()
        mean_loss(plain, [r for r in range(3) if step < NUM_BATCHES[r]], step).backward()
        own.step()
    for end, steps in gs.run_threads(3, train):
        assert (end - flat(plain)).abs().max() < 1e-6
        assert steps == 6


@pytest.mark.parametrize(
    "algorithm", ["gossip", {"name": "outer", "every": 2}, "gradient_tracking"]
)
def test_ranks_that_have_no_batch_left_mix_on(algorithm):
    def train():
        topology = None if isinstance(algorithm, dict) else "ring"
        model = gs.DecentralizedDataParallel(
            make_mlp(), OPTIMIZERS["sgd"], topology, algorithm=algorithm
        )
        for _ in range(2):  # Two epochs
            with model.join():
                for step in range(NUM_BATCHES[rank()]):
                    loss_of(model, rank(), step).backward()
        with model.global_average():
            mean = flat(model).clone()
        return mean, model.num_steps

    ends = gs.run_threads(3, train)
    assert [steps for _, steps in ends] == [12] * 3
    assert all(torch.equal(mean, ends[0][0]) for mean, _ in ends)


def test_where_join_cannot_work_is_said():
    def work():
        scaler = torch.amp.GradScaler("cpu")
        model = gs.DecentralizedDataParallel(make_mlp(), OPTIMIZERS["sgd"], scaler=scaler)
        with pytest.raises(gs.ConfigError, match="without scaler="), model.join():
            pass
        model.finish()
        return True

    def survives():
        model = gs.DecentralizedDataParallel(make_mlp(), OPTIMIZERS["sgd"])
        with pytest.raises(gs.ConfigError, match="ElasticSampler"), model.join():
            pass
        return True

    assert gs.run_threads(1, work) == [True]
    assert gs.run_threads(1, survives, survive=True) == [True]


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("algorithm", ["gossip", "allreduce", {"name": "outer", "every": 2}])
def test_a_rank_that_leaves_out_batches_is_named_with_its_steps(algorithm, stays):
    failed = threading.Event()

    def train():
        topology = "complete" if algorithm == "gossip" else None
        model = gs.DecentralizedDataParallel(
            make_mlp(), OPTIMIZERS["sgd"], topology, algorithm=algorithm
        )
        try:
            for step in range(NUM_BATCHES[rank()]):
                loss_of(model, rank(), step).backward()
        except gs.CommError:
            failed.set()
            raise
        if rank() == 1 and stays:
            failed.wait(60)  # It writes what it has trained, or waits in a debugger.

    with pytest.raises(gs.CommError, match=r"rank 1 is \d steps? behind: it has begun 4, and"):
        gs.run_threads(2, train, timeout_s=1)
