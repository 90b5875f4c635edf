"""Deals the samples of an epoch over ranks that come and go, each sample at most once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from . import _core

if TYPE_CHECKING:
    from .data_parallel import DecentralizedDataParallel
    from .sharded import ShardedGossip

__all__ = ["ElasticSampler"]

_STATE = "sampler"


class _Place(NamedTuple):
    """A place in the data: so many batches of each rank have been dealt in this epoch."""

    epoch: int
    batch: int


class _World(NamedTuple):
    """From this place on so many ranks share the data."""

    place: _Place
    size: int
    rank: int
    """This rank's; -1: this rank was not there."""


class ElasticSampler(torch.utils.data.Sampler[list[int]]):
    """Batches of one rank, for ``DataLoader(dataset, batch_sampler=sampler)``.

    Each epoch has an order of its own, which follows from the seed. Batch b of all ranks is the
    next piece of this order, of `batch_size` samples for each rank. What is left at the end, too
    few samples for a batch of every rank, is left out.

    When ranks are lost or join, what no rank has got yet is dealt anew. Example with three ranks
    whose loaders fetch ahead; rank 2 dies when ranks 0 and 1 have been dealt 7 and 8 batches:

    1. Both ranks go on in the old way until each has been dealt 8 batches.
    2. From batch 8 on the two ranks share all samples that follow in the order.
    3. Lost are the samples of the dead rank before batch 8 that it has not trained with. What it
       has trained with in a step that no other rank had made is dealt again, because no model that
       is left has seen it.
    4. A rank that joins has no batch before batch 8. Its loop begins there. In the steps before
       that, the rank mixes, and updates nothing.

    In a node that shards a model, each rank over which FSDP shards has batches of its own. Ranks of
    one tensor-parallel group have the same ones.

    A pass over the loader is the rest of an epoch, so a loop counts epochs with `epoch`::

        while sampler.epoch < 10:
            for x, y in loader:
                loss_fn(model(x), y).backward()

    Parameters
    ----------
    dataset
        The data set, or the number of its samples.
    batch_size
        Samples of one batch of one rank.
    model
        The wrapper, or the ShardedGossip. save(), Checkpoints and ranks that join have the
        sampler's state under the name "sampler" (register_state()).
    seed
        All ranks give the same.
    shuffle
        False: every epoch has the order of the data set.
    batches_per_step
        Batches whose gradients are accumulated before a step.

    Raises
    ------
    ConfigError
        For sizes below 1.
    """

    def __init__(
        self,
        dataset: Sized | int,
        batch_size: int,
        model: DecentralizedDataParallel | ShardedGossip,
        *,
        seed: int = 0,
        shuffle: bool = True,
        batches_per_step: int = 1,
    ) -> None:
        self._num_samples = dataset if isinstance(dataset, int) else len(dataset)
        if min(self._num_samples, batch_size, batches_per_step) < 1:
            raise _core.ConfigError(
                f"ElasticSampler: {self._num_samples} samples, batch_size {batch_size}, "
                f"batches_per_step {batches_per_step}, allowed: 1 or more"
            )
        self._batch_size, self._per_step = batch_size, batches_per_step
        self._model = model
        self._seed, self._shuffle = seed, shuffle
        self._worlds: list[_World] = []
        self._dealt = _Place(0, 0)
        self._has_joined = False
        """This rank has joined, and has not got the others' history."""
        self._order: tuple[int, list[int]] = (-1, [])
        self._steps_before = 0
        """The steps of the model that came before the batches of the ledger."""
        self._ledger: list[tuple[_Place, list[int]]] = []
        """What this rank has been dealt since the run began, or was resumed."""
        self._restore: Callable[[], None] | None = None
        model.register_state(_STATE, self)

    @property
    def epoch(self) -> int:
        """The epoch of the next pass over the loader, from 0."""
        self._begin()
        return self._dealt.epoch

    def ledger(self) -> list[tuple[int, list[int]]]:
        """Return the batches that this rank has trained with: the epoch and the samples of each.

        Batches from before the run was resumed are not among them, and neither are batches that a
        loader has fetched ahead.
        """
        used = self._ledger[: self._num_used()]
        return [(place.epoch, samples) for place, samples in used if samples]

    def __len__(self) -> int:
        """Return how many batches of this rank are left in the epoch."""
        self._begin()
        last = self._worlds[-1].place
        if last.epoch != self._dealt.epoch or last <= self._dealt:
            return self._num_left(self._dealt)
        is_dealt = self._part_at(self._dealt)[0].rank >= 0
        return self._num_left(last) + is_dealt * (last.batch - self._dealt.batch)

    def __iter__(self) -> Iterator[list[int]]:
        """Deal the rest of the epoch."""
        self._begin()
        if self._restore is not None:
            self._restore()
            self._restore = None
        epoch = self._dealt.epoch
        while self._num_left(self._dealt) > 0:
            place, self._dealt = self._dealt, _Place(epoch, self._dealt.batch + 1)
            samples = self._samples_at(place)
            self._ledger.append((place, samples))
            if samples:
                yield samples
        self._dealt = _Place(epoch + 1, 0)

    # What the wrapper asks when the members change.

    def place(self) -> list[int]:
        """Return from where on this rank can go on in another world."""
        self._begin()
        # A change before may be one that this rank has not come to yet.
        return list(max(self._dealt, self._worlds[-1].place))

    def num_steps_ahead(self) -> int:
        """Return the steps that the ranks have to make before they come to place()."""
        if self._has_joined:
            return 0
        place = _Place(*self.place())
        num_batches = len(self._ledger) - self._num_used()
        if place.epoch == self._dealt.epoch:
            num_batches += place.batch - self._dealt.batch
        else:
            num_batches += self._num_left(self._dealt) + place.batch
        return -(-num_batches // self._per_step)

    def begin_here(self) -> None:
        """Deal this rank, which has joined, its first batch for its next step."""
        self._has_joined = False
        self._dealt = max(self._dealt, next(w.place for w in self._worlds if w.rank >= 0))
        self._ledger = []
        self._steps_before = self._model.num_steps

    def change(self, places: list[list[int]]) -> None:
        """Go on in a new world. `places` are those of all ranks that have not just joined."""
        epoch, batch = max(_Place(*place) for place in places)
        # Ranks that join take part in whole steps.
        furthest = _Place(epoch, -(-batch // self._per_step) * self._per_step)
        self._has_joined = self._has_joined or not self._worlds
        # Of changes at one place the last one counts.
        self._worlds = [world for world in self._worlds if world.place < furthest]
        self._worlds.append(self._world_from(furthest))

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the data, and the changes of the number of ranks so far."""
        self._begin()
        used = self._num_used()
        place = self._ledger[used][0] if used < len(self._ledger) else self._dealt
        return {
            "seed": self._seed,
            "batch_size": self._batch_size,
            "place": list(place),
            "worlds": [[*world.place, world.size] for world in self._worlds],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where state_dict() was, with the ranks of today.

        Raises
        ------
        CheckpointError
            For a state of another seed or batch size.
        """
        for name, own in (("seed", self._seed), ("batch_size", self._batch_size)):
            if state[name] != own:
                raise _core.CheckpointError(
                    f"ElasticSampler: the saved run has {name} {state[name]}, and this one {own}, "
                    "allowed: the same"
                )
        worlds = [_World(_Place(e, b), size, -1) for e, b, size in state["worlds"]]
        place = _Place(*state["place"])
        if self._has_joined:
            own_worlds = [world for world in self._worlds if world.rank >= 0]
            first = own_worlds[0].place
            self._worlds = [*(world for world in worlds if world.place < first), *own_worlds]
        else:
            self._worlds = [world for world in worlds if world.place < place]
            self._worlds.append(self._world_from(place))
        self._dealt = place
        self._ledger = []
        self._steps_before = self._model.num_steps

    def restore_with(self, restore: Callable[[], None]) -> None:
        """Call `restore` when the rest of an epoch is dealt, if a part of it is used already.

        A DataLoader draws a random number when a pass over it begins. The run that was saved had
        drawn it at the beginning of the epoch, and `restore` takes the second one back.
        """
        self._restore = restore if self._dealt.batch > 0 else None

    # The dealing.

    def _begin(self) -> None:
        if not self._worlds:
            # A rank that joins gets the others' history with its first look at the steps.
            steps = self._model.num_steps
            if not self._worlds:
                self._worlds = [self._world_from(_Place(0, 0))]
                self._steps_before = steps

    def _world_from(self, place: _Place) -> _World:
        """Return the present world, in which several ranks of a node may have batches."""
        session = self._model.session
        own, num = getattr(self._model, "share_of_node", (0, 1))
        return _World(place, session.world_size * num, session.rank * num + own)

    def _num_used(self) -> int:
        return (self._model.num_steps - self._steps_before) * self._per_step

    def _order_of(self, epoch: int) -> list[int]:
        if self._order[0] != epoch:
            order = list(range(self._num_samples))
            if self._shuffle:
                # One stream of random numbers for each epoch.
                generator = torch.Generator().manual_seed((self._seed << 20) + epoch)
                order = torch.randperm(self._num_samples, generator=generator).tolist()
            self._order = (epoch, order)
        return self._order[1]

    def _parts_of(self, epoch: int) -> list[tuple[_World, int]]:
        """Return the worlds of an epoch, each with the number of samples dealt before it."""
        first = [world for world in self._worlds if world.place <= _Place(epoch, 0)][-1]
        parts = [(first._replace(place=_Place(epoch, 0)), 0)]
        for world in self._worlds:
            if world.place.epoch != epoch or world.place.batch == 0:
                continue
            last, dealt = parts[-1]
            dealt += (world.place.batch - last.place.batch) * last.size * self._batch_size
            parts.append((world, dealt))
        return parts

    def _part_at(self, place: _Place) -> tuple[_World, int]:
        return [part for part in self._parts_of(place.epoch) if part[0].place <= place][-1]

    def _num_left(self, place: _Place) -> int:
        world, dealt = self._part_at(place)
        whole = (self._num_samples - dealt) // (world.size * self._batch_size)
        return max(0, whole - (place.batch - world.place.batch))

    def _samples_at(self, place: _Place) -> list[int]:
        """Return this rank's samples of a batch; none where it was not there."""
        world, dealt = self._part_at(place)
        if world.rank < 0:
            return []
        begin = dealt + (place.batch - world.place.batch) * world.size * self._batch_size
        begin += world.rank * self._batch_size
        return self._order_of(place.epoch)[begin : begin + self._batch_size]
