"""Ranks that have different numbers of batches."""

from __future__ import annotations

import threading

import pytest
import torch
from conftest import batch, flat, loss_of, make_mlp, rank
from test_ddp import mean_loss
from test_optimizers import IN_PYTHON, OPTIMIZERS
from test_survival import launch

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
            # It writes what it has trained, or waits in a debugger. Under outer the other rank
            # fails after its loop.
            failed.wait(5)

    with pytest.raises(gs.CommError, match=r"rank 1 is \d steps? behind: it has begun 4, and"):
        gs.run_threads(2, train, timeout_s=1)


SKIPS = """
import time
import torch
import gossamer as gs
from conftest import loss_of, make_mlp

rank, _ = gs.initialize_dist(timeout_s=5)
model = gs.DecentralizedDataParallel(
    make_mlp(), lambda ps: torch.optim.SGD(ps, lr=0.05), algorithm="allreduce"
)
for step in range((6, 4)[rank]):
    loss_of(model, rank, step).backward()
while rank == 1:
    # Its own thread communicates nothing.
    time.sleep(0.05)
    gs.current_session().check()
"""


def test_processes_know_the_steps_of_a_rank_that_is_silent(tmp_path):
    path = tmp_path / "skips.py"
    path.write_text(SKIPS)
    process = launch(path, options=("-n", "2"))
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 74
    assert "rank 1 is 1 step behind: it has begun 4, and rank 0 has begun 5" in errors


def tokens_of(rank, step):
    """Return the tokens of a batch, in which each token is an example of its own."""
    x, y = (tensor.double() for tensor in batch(rank, step))
    num = (3, 16, 0)[rank] if step % 2 else 5 + rank
    return x[:num], y[:num]


def weighed(steps, optim_fn, accumulates=False, scaler=None):
    """Train on tokens whose numbers differ between the ranks."""
    model = gs.DecentralizedDataParallel(
        make_mlp().double(), optim_fn, algorithm="allreduce", scaler=scaler
    )
    scale = scaler.scale if scaler is not None else lambda loss: loss
    for step in range(steps):
        x, y = tokens_of(rank(), step)
        model.backward_weight(len(x))
        loss = torch.nn.functional.mse_loss(model(x), y)
        if accumulates:
            with model.no_sync():
                (0.5 * loss).backward()
            loss = 0.5 * torch.nn.functional.mse_loss(model(x), y)
        scale(loss).backward()
        if scaler is not None:
            scaler.update()
    return flat(model).clone()


def with_all_tokens(steps, optim_fn):
    plain = make_mlp().double()
    own = optim_fn(list(plain.parameters()))
    for step in range(steps):
        parts = [tokens_of(r, step) for r in range(3)]
        x, y = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        own.zero_grad()
        torch.nn.functional.mse_loss(plain(x), y).backward()
        own.step()
    return flat(plain)


@pytest.mark.parametrize("accumulates", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "rmsprop"])
def test_weights_make_one_process_with_all_tokens(optimizer, accumulates):
    optim_fn = (OPTIMIZERS | IN_PYTHON)[optimizer]
    expected = with_all_tokens(6, optim_fn)
    for end in gs.run_threads(3, lambda: weighed(6, optim_fn, accumulates)):
        assert (end - expected).abs().max() < 1e-6


def test_weights_go_with_a_scaler():
    def work():
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        return weighed(6, OPTIMIZERS["sgd"], scaler=scaler)

    expected = with_all_tokens(6, OPTIMIZERS["sgd"])
    for end in gs.run_threads(3, work):
        assert (end - expected).abs().max() < 1e-6


def test_weights_go_with_different_numbers_of_batches():
    def train():
        model = gs.DecentralizedDataParallel(
            make_mlp().double(), OPTIMIZERS["adamw"], algorithm="allreduce"
        )
        with model.join():
            for step in range(NUM_BATCHES[rank()]):
                x, y = tokens_of(rank(), 2 * step)
                model.backward_weight(len(x))
                torch.nn.functional.mse_loss(model(x), y).backward()
        return flat(model).clone()

    plain = make_mlp().double()
    own = OPTIMIZERS["adamw"](list(plain.parameters()))
    for step in range(6):
        present = [r for r in range(3) if step < NUM_BATCHES[r]]
        parts = [tokens_of(r, 2 * step) for r in present]
        x, y = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        own.zero_grad()
        torch.nn.functional.mse_loss(plain(x), y).backward()
        own.step()
    for end in gs.run_threads(3, train):
        assert (end - flat(plain)).abs().max() < 1e-6


def test_a_weight_counts_for_one_step():
    def train():
        model = gs.DecentralizedDataParallel(make_mlp(), OPTIMIZERS["sgd"], algorithm="allreduce")
        model.backward_weight(1 + rank())
        loss_of(model, rank(), 0).backward()
        loss_of(model, rank(), 1).backward()
        return flat(model).clone()

    plain = make_mlp()
    own = OPTIMIZERS["sgd"](list(plain.parameters()))
    for step, weights in enumerate([(1 / 3, 2 / 3), (1 / 2, 1 / 2)]):
        own.zero_grad()
        sum(w * loss_of(plain, r, step) for r, w in enumerate(weights)).backward()
        own.step()
    for end in gs.run_threads(2, train):
        assert (end - flat(plain)).abs().max() < 1e-6


def test_weights_that_make_no_mean_are_refused():
    def work(algorithm, weight, text):
        model = gs.DecentralizedDataParallel(make_mlp(), OPTIMIZERS["sgd"], algorithm=algorithm)
        with pytest.raises(gs.ConfigError, match=text):
            model.backward_weight(weight)
            loss_of(model, rank(), 0).backward()
        return True

    for algorithm, weight, text in [
        ("gossip", 3, "no mean of gradients"),
        ("allreduce", -1, "is -1, allowed: 0 or more"),
        ("allreduce", float("nan"), "is nan, allowed: 0 or more"),
        ("allreduce", 0, "add up to 0"),
    ]:
        assert gs.run_threads(2, lambda given=(algorithm, weight, text): work(*given)) == [True] * 2
