"""Samples that are dealt over ranks that come and go."""

from __future__ import annotations

import collections
import threading

import pytest
import torch
from conftest import make_mlp, rank
from torch.utils.data import DataLoader, TensorDataset

import gossamer as gs


def make():
    return gs.DecentralizedDataParallel(
        make_mlp(), lambda ps: torch.optim.SGD(ps, lr=0.01), "base-k"
    )


def data_of(num_samples):
    x = torch.zeros(num_samples, 8)
    return TensorDataset(x, torch.arange(num_samples))


def step(model, x):
    model(x).square().mean().backward()


def fetched_ahead(loader, num_batches):
    """Yield the batches of a loader that fetches some ahead, as one with workers does."""
    waiting = collections.deque()
    for batch in loader:
        waiting.append(batch)
        if len(waiting) > num_batches:
            yield waiting.popleft()
    yield from waiting


def test_every_epoch_has_each_sample_once_in_an_order_of_its_own():
    def work():
        model = make()
        sampler = gs.ElasticSampler(26, 4, model, seed=3)
        assert len(sampler) == 2
        while sampler.epoch < 2:
            for _, _ in DataLoader(data_of(26), batch_sampler=sampler):
                step(model, torch.zeros(4, 8))
        return sampler.ledger()

    ledgers = gs.run_threads(3, work)
    by_epoch = [sorted(i for one in ledgers for e, b in one if e == n for i in b) for n in (0, 1)]
    for samples in by_epoch:
        assert len(samples) == len(set(samples)) == 24
    first = [[b for e, b in one if e == 0] for one in ledgers]
    assert first != [[b for e, b in one if e == 1] for one in ledgers]


def test_without_shuffling_the_ranks_share_the_order_of_the_data():
    def work():
        model = make()
        sampler = gs.ElasticSampler(8, 2, model, shuffle=False)
        for batch in sampler:
            step(model, torch.zeros(len(batch), 8))
        return sampler.ledger()

    assert gs.run_threads(2, work) == [[(0, [0, 1]), (0, [4, 5])], [(0, [2, 3]), (0, [6, 7])]]


@pytest.mark.parametrize("ahead", [0, 3])
@pytest.mark.parametrize("victim", [0, 2])
def test_what_a_dead_rank_leaves_is_dealt_anew(ahead, victim):
    num_samples, lock = 200, threading.Lock()
    used = []

    def work():
        own = member = rank()
        model = make()
        changes = []
        model.session.on_change(changes.append)
        sampler = gs.ElasticSampler(num_samples, 4, model, seed=1)
        loader = DataLoader(data_of(num_samples), batch_sampler=sampler)
        epochs = []
        while sampler.epoch < 2:
            epochs.append(sampler.epoch)
            for x, ids in fetched_ahead(loader, ahead):
                if own == victim and model.num_steps == 5:
                    raise RuntimeError("this rank dies")
                step(model, x)
                if epochs[-1] == 0:
                    with lock:
                        used.append((member, model.num_steps, ids.tolist()))
        return sampler.ledger(), model.num_steps, epochs, changes[0].step

    ends = [end for end in gs.run_threads(3, work, survive=True) if end is not None]
    assert len(ends) == 2
    assert ends[0][1:] == ends[1][1:]
    assert ends[0][2] == [0, 1]
    # No model that is left has seen what a dead rank did in a step that no other had made.
    change = ends[0][3]
    seen = [i for m, step, ids in used for i in ids if m != victim or step <= change]
    assert len(seen) == len(set(seen))
    # Lost are a few batches of the dead rank, and less than a batch of each at the end.
    assert len(seen) >= num_samples - 4 * (ahead + 3) - 8
    for epoch in range(2):
        mine = [i for ledger, *_ in ends for e, batch in ledger if e == epoch for i in batch]
        assert len(mine) == len(set(mine))
    second = [i for ledger, *_ in ends for e, batch in ledger if e == 1 for i in batch]
    assert len(second) == 200


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3), (4, 1)])
def test_a_run_that_is_resumed_uses_no_sample_twice(tmp_path, sizes):
    def first():
        model = make()
        sampler = gs.ElasticSampler(120, 5, model, seed=2)
        batches = fetched_ahead(DataLoader(data_of(120), batch_sampler=sampler), 2)
        for _ in range(4):
            step(model, next(batches)[0])
        gs.Checkpoints(tmp_path).save(model)
        return sampler.ledger()

    def second():
        model = make()
        sampler = gs.ElasticSampler(120, 5, model, seed=2)
        gs.Checkpoints(tmp_path).resume(model, reshape="average")
        for x, _ in DataLoader(data_of(120), batch_sampler=sampler):
            step(model, x)
        return sampler.ledger(), sampler.epoch

    before = [i for one in gs.run_threads(sizes[0], first) for _, b in one for i in b]
    ends = gs.run_threads(sizes[1], second)
    after = [i for ledger, _ in ends for _, b in ledger for i in b]
    assert len(before) == sizes[0] * 20
    assert [epoch for _, epoch in ends] == [1] * sizes[1]
    assert len(set(before) | set(after)) == len(before) + len(after)
    left = 120 - len(before)
    assert len(after) == left - left % (5 * sizes[1])


def test_a_state_of_other_data_is_refused():
    def work():
        model = make()
        sampler = gs.ElasticSampler(20, 2, model, seed=1)
        with pytest.raises(gs.CheckpointError, match="seed 2"):
            sampler.load_state_dict(sampler.state_dict() | {"seed": 2})
        with pytest.raises(gs.ConfigError, match="batch_size 0"):
            gs.ElasticSampler(20, 0, model)

    gs.run_threads(1, work)
