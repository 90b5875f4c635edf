"""What Python's numbers become in a file that torch.load(weights_only=True) reads."""

from __future__ import annotations

import io
import pickle
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Any

import torch

from . import _core

__all__ = ["check_readable", "plain"]


def plain(value: Any) -> Any:
    """Return a value in which numbers are Python's own, where they were numpy's or a subclass."""
    if type(value) in (dict, OrderedDict, Counter):
        return type(value)({plain(key): plain(inner) for key, inner in value.items()})
    if type(value) in (list, tuple):
        return type(value)(plain(inner) for inner in value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def check_readable(value: Any) -> None:
    """Refuse a value that torch.save() takes and torch.load() refuses.

    Raises
    ------
    CheckpointError
        Names the place of the value that cannot be read.
    """
    if _is_readable(_without_tensors(value)):
        return
    for place, leaf in _leaves(_without_tensors(value)):
        if not _is_readable(leaf):
            raise _core.CheckpointError(
                f"{place} is a {type(leaf).__module__}.{type(leaf).__qualname__}, which load() "
                "could not read, allowed: tensors, numbers, texts, and lists and dicts of these"
            )


def _is_readable(value: Any) -> bool:
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except (pickle.PickleError, AttributeError, TypeError, RuntimeError):
        return False
    return True


def _without_tensors(value: Any) -> Any:
    """Return the value without what is always readable and may be large."""
    if isinstance(value, torch.Tensor):
        return None
    if type(value) in (dict, OrderedDict, Counter):
        return type(value)({key: _without_tensors(inner) for key, inner in value.items()})
    if type(value) in (list, tuple):
        return type(value)(_without_tensors(inner) for inner in value)
    return value


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if type(value) in (dict, OrderedDict, Counter):
        for key, inner in value.items():
            yield from _leaves(inner, f"{place}.{key}" if place else str(key))
    elif type(value) in (list, tuple):
        for i, inner in enumerate(value):
            yield from _leaves(inner, f"{place}.{i}")
    else:
        yield place, value
