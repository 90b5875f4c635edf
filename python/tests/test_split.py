"""Streams of samples that ranks and workers share."""

from __future__ import annotations

import pytest
from conftest import loss_of, make_mlp, rank
from test_optimizers import OPTIMIZERS
from torch.utils.data import DataLoader, IterableDataset

import gossamer as gs


class Stream(IterableDataset):
    """The numbers below a limit."""

    def __init__(self, limit):
        self.limit = limit

    def __iter__(self):
        yield from range(self.limit)


@pytest.mark.parametrize(
    ("num_workers", "expected"),
    [
        (0, [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9]]),
        # The loader asks its workers in turn.
        (2, [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9]]),
        (3, [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9]]),
    ],
)
def test_every_rank_has_its_turn(num_workers, expected):
    def parts():
        return gs.split_for_rank(Stream(11))

    # Processes of workers begin in the main thread alone.
    loaders = [
        DataLoader(part, batch_size=None, num_workers=num_workers)
        for part in gs.run_threads(2, parts)
    ]
    assert [list(map(int, loader)) for loader in loaders] == expected


def test_a_worker_has_every_so_manyth_element_of_its_rank():
    (part, _) = gs.run_threads(2, lambda: gs.split_for_rank(Stream(11)))
    batches = DataLoader(part, batch_size=3, num_workers=2)
    assert [batch.tolist() for batch in batches] == [[0, 4, 8], [2, 6, 10]]


def test_every_epoch_begins_anew():
    part = gs.run_threads(1, lambda: gs.split_for_rank([3, 1, 2]))[0]
    assert [list(part), list(part)] == [[3, 1, 2]] * 2


def test_uneven_ends_are_for_join():
    def work():
        model = gs.DecentralizedDataParallel(make_mlp(), OPTIMIZERS["sgd"], "ring")
        own = 0
        with model.join():
            for step in gs.split_for_rank(range(11)):
                loss_of(model, rank(), step).backward()
                own += 1
        return own, model.num_steps

    assert gs.run_threads(2, work) == [(6, 6), (5, 6)]


def test_a_session_whose_ranks_may_die_refuses_a_stream():
    def work():
        gs.split_for_rank(range(3))

    with pytest.raises(gs.ConfigError, match="allowed: a data set with a length and Elastic"):
        gs.run_threads(1, work, survive=True)
