"""Tensors that share memory with a parameter, which the engine moves."""

from __future__ import annotations

import contextlib
import gc
import itertools
import warnings
from collections.abc import Iterable, Sequence

import torch

__all__ = ["Aliases"]


class Aliases:
    """The other tensors in the memory of parameters, such as ``table = p.detach()``.

    They follow when the engine moves a parameter, so that they go on to see its values. A tensor
    that spans several parameters cannot follow, because the engine puts them elsewhere.

    Parameters
    ----------
    names, parameters
        The parameters that the engine moves.
    """

    def __init__(self, names: Sequence[str], parameters: Sequence[torch.nn.Parameter]) -> None:
        self._names = names
        self._parameters = parameters
        self._has_warned = False
        self._old_memory: list[torch.Tensor] = []
        """An array of numpy may still read the memory that its tensor has left."""

    def warn(self, own: Iterable[torch.Tensor]) -> None:
        """Warn of tensors that cannot follow; `own`: tensors of the engine that do not count."""
        self._warn_of_processes()
        self._warn_of_twins()
        self._followers(own)

    def _warn_of_twins(self) -> None:
        """Warn of parameters in the same memory, which get memory of their own in the first step.

        Parameters are dense, so that each has all bytes between its first and its last one.
        """
        extents = sorted(
            (p.data_ptr(), p.data_ptr() + p.numel() * p.element_size(), i)
            for i, p in enumerate(self._parameters)
            if p.numel() > 0
        )
        for (_, end, first), (begin, _, second) in itertools.pairwise(extents):
            if begin < end:
                one, other = (self._names[i] for i in sorted((first, second)))
                warnings.warn(
                    f"the parameters {one} and {other} are two that share memory, as after "
                    f"{other}.data = {one}.data. The first step gives each memory of its own, and "
                    "they come apart; make them one parameter before wrapping, as by "
                    f"{other} = {one}",
                    stacklevel=5,
                )

    def _warn_of_processes(self) -> None:
        """Warn of parameters that other processes may see, which the first step moves away."""
        shared = [
            name
            for name, p in zip(self._names, self._parameters, strict=True)
            if p.device.type == "cpu" and p.is_shared()  # type: ignore[no-untyped-call]
        ]
        if shared:
            warnings.warn(
                f"{len(shared)} parameters are in memory that processes share, as after "
                f"share_memory() or torch.load(mmap=True): {', '.join(shared[:5])}"
                f"{', ...' if shared[5:] else ''}. The first step moves them to memory of this "
                "process alone, and other processes keep the old values; send them a copy when "
                "they need new ones",
                stacklevel=5,
            )

    @torch.no_grad()
    def move(self, own: Iterable[torch.Tensor], homes: Sequence[torch.Tensor]) -> None:
        """Give all parameters, and the tensors that share memory with them, their new memory.

        Parameters
        ----------
        own
            Tensors of the engine that do not count.
        homes
            The parameters' new memory.
        """
        followers = self._followers(own)
        for tensor, i in followers:
            p, home = self._parameters[i], homes[i]
            offset = home.storage_offset() + tensor.storage_offset() - p.storage_offset()
            self._old_memory.append(tensor.data)
            tensor.data = home.as_strided(tensor.shape, tensor.stride(), offset)
        for p, home in zip(self._parameters, homes, strict=True):
            p.data = home

    def _followers(self, own: Iterable[torch.Tensor]) -> list[tuple[torch.Tensor, int]]:
        """Return the tensors that can follow, each with the index of its parameter."""
        by_memory: dict[int, list[int]] = {}
        for i, p in enumerate(self._parameters):
            if p.numel() > 0:
                by_memory.setdefault(_memory_of(p), []).append(i)
        known = [*self._parameters, *own, *self._old_memory]
        shared = _shared_memory(by_memory, known)
        followers = []
        for tensor in _tensors_in(shared, known):
            owner = self._owner_of(tensor, by_memory[_memory_of(tensor)])
            if owner is not None:
                followers.append((tensor, owner))
        return followers

    def _owner_of(self, tensor: torch.Tensor, candidates: list[int]) -> int | None:
        begin, end = _extent(tensor)
        overlapped = []
        for i in candidates:
            p_begin, p_end = _extent(self._parameters[i])
            if tensor.dtype == self._parameters[i].dtype and p_begin <= begin and end <= p_end:
                return i
            if begin < p_end and p_begin < end:
                overlapped.append(self._names[i])
        if overlapped and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"a tensor of shape {list(tensor.shape)} and {tensor.dtype} shares memory with the "
                f"parameters {', '.join(overlapped[:5])}{', ...' if overlapped[5:] else ''}. The "
                "first step moves these parameters, and the tensor keeps the old values; make it "
                "anew from the parameters when you need it",
                stacklevel=5,
            )
        return None


def _memory_of(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the bytes of its storage in which a tensor lies, as begin and end."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    begin, size = int(tensor.storage_offset()), tensor.element_size()
    return begin * size, (begin + int(last) + 1) * size


def _shared_memory(memories: Iterable[int], known: list[torch.Tensor]) -> set[int]:
    """Return the memory that has more users than the tensors that are known."""
    num_known = dict.fromkeys(memories, 0)
    # The storage's own object in Python is one more user while it lives. PyTorch 2.4 ends it early.
    storages = {}
    for tensor in {id(tensor): tensor for tensor in known}.values():
        memory = _memory_of(tensor)
        if memory in num_known:
            num_known[memory] += 1
            storages[memory] = tensor.untyped_storage()
    return {
        memory for memory in storages if torch._C._storage_Use_Count(memory) > num_known[memory] + 1
    }


def _tensors_in(memories: set[int], known: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors of this process that lie in some memory and are not known.

    Looking at all objects takes a part of a second, so this is for memory that is shared.
    """
    if not memories:
        return []
    known_ids = set(map(id, known))
    found = []
    for thing in gc.get_objects():
        # isinstance() would wake up objects that stand for others.
        if not issubclass(type(thing), torch.Tensor) or id(thing) in known_ids:
            continue
        # Some kinds of tensors have no storage.
        with contextlib.suppress(NotImplementedError, RuntimeError):
            if thing.numel() > 0 and _memory_of(thing) in memories:
                found.append(thing)
    return found
