"""The part of one rank, and of one worker of its loader, in a stream of samples."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from . import _core
from .distributed import current_session

__all__ = ["split_for_rank"]


class _Part(torch.utils.data.IterableDataset[Any]):
    """Every element of a stream whose turn is this rank's. Goes to the loader's workers."""

    def __init__(self, source: Iterable[Any], rank: int, size: int) -> None:
        self._source = source
        self._rank, self._size = rank, size

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        number, num_workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        first = self._rank + self._size * number
        return itertools.islice(self._source, first, None, self._size * num_workers)


def split_for_rank(iterable: Iterable[Any]) -> torch.utils.data.IterableDataset[Any]:
    """Return this rank's part of a stream, for a DataLoader.

    Example of a stream of eleven elements, for two ranks whose loaders have two workers each:

    1. Rank r takes every second element, beginning with the r-th. Rank 0 has 0, 2, 4, 6, 8 and 10.
    2. The workers of a rank take its elements in turn. Worker 0 of rank 0 has 0, 4 and 8.
    3. Rank 0 has six elements, and rank 1 has five. Loops with batches of one make different
       numbers of steps, so put them into ``with model.join():``.

    Every worker of every rank reads the whole stream and passes over what is not its own. The
    stream must have the same order everywhere, so seed what shuffles it alike on all ranks.

    Parameters
    ----------
    iterable
        The stream. A list, or an IterableDataset, begins anew in every epoch.

    Raises
    ------
    ConfigError
        In a session with survive=True. The parts follow from the number of ranks, and where a
        dead rank was in the stream is not known.
    """
    session = current_session()
    if session.is_elastic:
        raise _core.ConfigError(
            "split_for_rank(): the session has survive=True, and the elements of a stream cannot "
            "be dealt anew when ranks die or join, allowed: a data set with a length and "
            "ElasticSampler, or a session without survive"
        )
    return _Part(iterable, session.rank, session.world_size)
