"""The state of an optimizer whose work the engine does, where PyTorch has it."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils.dlpack import from_dlpack

from . import _core
from .optimizers import Rule, StateNames, state_names
from .parameters import EngineParameters

__all__ = ["OptimizerState", "forget_float32", "keep_float32"]


class OptimizerState:
    """Keeps ``optimizer.state`` and the engine's states of an optimizer the same.

    After a step ``optimizer.state[p]`` holds tensors that share the engine's memory, under
    PyTorch's names. What others put there, as ``optimizer.load_state_dict()`` does, goes into the
    engine before the next step.

    Parameters
    ----------
    optimizer
        The optimizer.
    rule
        The engine's rule for it.
    trained
        The parameters, in the engine's order.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, rule: Rule, trained: EngineParameters
    ) -> None:
        self._optimizer = optimizer
        self._trained = trained
        self._rule = rule
        self._names: StateNames = state_names(rule)
        self._entries: dict[int, dict[str, Any]] = {}
        self._steps = torch.zeros(len(trained.tensors), dtype=self._names.step_dtype)
        # Kept alive, so that no other value gets the id of one of them.
        self._seen: list[Any] = []
        self._seen_version = -1
        self._generation = -1
        self._live_engine: Callable[[], _core.Engine | None] = _no_engine
        self._is_attached = False
        self._handle = _register_hook(self)
        keep_float32(optimizer)
        _has_masters.add(optimizer)

    def set_engine(self, live_engine: Callable[[], _core.Engine | None]) -> None:
        """Ask `live_engine` for the engine when the state is read; None: the engine is gone."""
        self._live_engine = live_engine

    def before_step(self, engine: _core.Engine) -> None:
        """Take in what others have written to ``optimizer.state`` since the last step."""
        if self._is_attached and not self._is_changed():
            return
        engine.drain()
        self._take_in(engine)
        self.give_out(engine)

    def after_step(self, engine: _core.Engine) -> None:
        """Show in ``optimizer.state`` what the engine has."""
        if not self._is_attached or self._is_changed():
            return
        counts = engine.updates()
        is_complete = len(counts) - counts.count(0) == len(self._entries)
        if is_complete and engine.generation == self._generation:
            self._show_steps(counts)
        else:
            self.give_out(engine)

    def renew(self, engine: _core.Engine) -> None:
        """Go on with an engine that has other parameters, from what ``optimizer.state`` has."""
        self._steps = torch.zeros(len(self._trained.tensors), dtype=self._names.step_dtype)
        self._is_attached = False
        self.before_step(engine)

    def give_out(self, engine: _core.Engine, *, is_asked_for: bool = False) -> None:
        """Put the engine's states into ``optimizer.state``, whatever has been there.

        Parameters
        ----------
        engine
            The engine, which has buckets.
        is_asked_for
            Whether a ConfigError ends the call where no rank has the whole states; else
            ``optimizer.state`` stays empty there.
        """
        self._is_attached = True
        self._generation = engine.generation
        self._entries = {}
        counts = engine.updates()
        self._show_steps(counts)
        if not self._names.names:
            return
        for i, (p, count) in enumerate(zip(self._trained.tensors, counts, strict=True)):
            others = self._optimizer.state.pop(p, {})
            if count == 0:
                continue
            try:
                entry = dict(others) | self._views(engine, i)
            except _core.ConfigError:
                if is_asked_for:
                    raise
                break
            if self._names.counts:
                entry["step"] = self._steps[i]
            self._entries[i] = self._optimizer.state[p] = entry
        self._note()

    def packed(self) -> dict[str, Any]:
        """Return the optimizer's state dict without what the engine has."""
        live_engine, self._live_engine = self._live_engine, _no_engine
        try:
            packed = self._optimizer.state_dict()
        finally:
            self._live_engine = live_engine
        own = {id(p) for p in self._trained.tensors}
        every = [p for group in self._optimizer.param_groups for p in group["params"]]
        for i, p in enumerate(every):
            if id(p) in own:
                packed["state"].pop(i, None)
        return packed

    def release(self) -> None:
        """Leave the states to the optimizer, when the engine ends."""
        self._clear_accumulators()
        self._handle.remove()
        _has_masters.discard(self._optimizer)

    # What a hook of the optimizer calls.

    def before_state_dict(self) -> None:
        """Show the engine's states of this moment to who asks for a state dict."""
        engine = self._live_engine()
        if engine is not None and engine.has_started:
            if self._is_changed():
                return
            engine.metrics()  # Waits until it is known whether the last step has counted.
            self.give_out(engine, is_asked_for=True)
        self._clear_accumulators()

    # The engine's side.

    def _clear_accumulators(self) -> None:
        """Do what PyTorch's optimizer does at the end of a cycle, for those who look."""
        for i, entry in self._entries.items():
            cycle = self._cycle(i)
            # The engine's rule begins a cycle without reading what the last one has left.
            if cycle > 1 and int(self._steps[i]) % cycle == 0:
                entry["accum_grad"].zero_()

    def _views(self, engine: _core.Engine, i: int) -> dict[str, torch.Tensor]:
        return {
            name: from_dlpack(engine.optimizer_state(i, own))
            for name, own in self._names.names.items()
        }

    def _show_steps(self, counts: list[int]) -> None:
        self._steps.copy_(torch.tensor(counts, dtype=self._names.step_dtype))
        self._seen_version = self._steps._version

    @torch.no_grad()
    def _take_in(self, engine: _core.Engine) -> None:
        if not self._names.names:
            return
        before = engine.updates()
        counts = []
        for i, p in enumerate(self._trained.tensors):
            entry = self._optimizer.state.get(p) or {}
            count = self._count_of(i, entry, before[i])
            if count > 0 or before[i] > 0:
                self._write(self._views(engine, i), i, entry)
            counts.append(count)
        engine.set_updates(counts)

    def _write(self, views: dict[str, torch.Tensor], i: int, entry: Mapping[str, Any]) -> None:
        name = self._trained.names[i]
        for key, view in views.items():
            value = entry.get(key)
            if value is None:
                if entry and self._names.counts:
                    raise _core.ConfigError(
                        f"the optimizer's state of parameter {name} has no {key}, allowed: the "
                        f"state of {type(self._optimizer).__name__}, or none"
                    )
                view.zero_()
                continue
            if not isinstance(value, torch.Tensor) or value.shape != view.shape:
                found = list(value.shape) if isinstance(value, torch.Tensor) else value
                raise _core.ConfigError(
                    f"the optimizer's state {key} of parameter {name} is {found}, allowed: a "
                    f"tensor of shape {list(view.shape)}, as the parameter has"
                )
            if value.data_ptr() != view.data_ptr() or value.stride() != view.stride():
                view.copy_(value)

    def _count_of(self, i: int, entry: Mapping[str, Any], before: int) -> int:
        if not entry or (not self._names.counts and entry.get("momentum_buffer") is None):
            return 0
        if not self._names.counts:
            return max(1, before)
        step = entry.get("step")
        number = float(step) if step is not None else -1.0
        if number < 0 or number != int(number):
            raise _core.ConfigError(
                f"the optimizer's state step of parameter {self._trained.names[i]} is {step}, "
                "allowed: a whole number, 0 or more"
            )
        return int(number)

    def _cycle(self, i: int) -> int:
        if "accum_grad" not in self._names.names:
            return 1
        p = self._trained.tensors[i]
        groups = self._optimizer.param_groups
        return next(int(g["accum_iter"]) for g in groups if any(p is q for q in g["params"]))

    # The optimizer's side.

    def _note(self) -> None:
        self._seen = self._values()
        self._seen_version = self._steps._version

    def _values(self) -> list[Any]:
        state = self._optimizer.state
        return [v for e in state.values() if isinstance(e, dict) for v in e.values()]

    def _is_changed(self) -> bool:
        if self._steps._version != self._seen_version:
            return True
        return list(map(id, self._values())) != list(map(id, self._seen))


class _Rounded(NamedTuple):
    """A float32 state of a bfloat16 parameter that PyTorch has rounded to the parameter's type."""

    entry: dict[str, Any]
    """The parameter's states."""
    name: str
    given: torch.Tensor
    loaded: torch.Tensor
    """What PyTorch has made of `given`."""
    version: int
    """The version of `loaded` before anybody has written it."""


# Kept until a wrapper takes them, because the wrapper may be made after its optimizer has loaded.
_rounded: weakref.WeakKeyDictionary[torch.optim.Optimizer, list[_Rounded]] = (
    weakref.WeakKeyDictionary()
)


# Optimizers whose work the engine does, on float32 master copies.
_has_masters: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


def keep_float32(optimizer: torch.optim.Optimizer) -> None:
    """Put back what PyTorch has rounded when the optimizer loaded states, if that is still there.

    Parameters
    ----------
    optimizer
        An optimizer that updates float32 master copies.
    """
    for state in _rounded.pop(optimizer, ()):
        if state.entry.get(state.name) is state.loaded and state.loaded._version == state.version:
            state.entry[state.name] = state.given.to(state.loaded.device)


def forget_float32(optimizer: torch.optim.Optimizer) -> None:
    """Free what keep_float32() would put back."""
    _rounded.pop(optimizer, None)


def _note_rounded(optimizer: torch.optim.Optimizer, given: Mapping[str, Any]) -> None:
    """Note what PyTorch has rounded when the optimizer has loaded `given`."""
    ids = [i for group in given["param_groups"] for i in group["params"]]
    every = [p for group in optimizer.param_groups for p in group["params"]]
    found = []
    for i, p in zip(ids, every, strict=True):
        entry = optimizer.state.get(p, {}) if p.dtype == torch.bfloat16 else {}
        for name, loaded in entry.items():
            value = given["state"].get(i, {}).get(name)
            if _is_of(torch.float32, value) and _is_of(torch.bfloat16, loaded):
                found.append(_Rounded(entry, name, value, loaded, loaded._version))
    _rounded.pop(optimizer, None)
    if found:
        _rounded[optimizer] = found


def _is_of(dtype: torch.dtype, value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == dtype


def _watch_loads() -> None:
    """Have every optimizer note what PyTorch rounds in loading, for which PyTorch has no hook."""
    load = torch.optim.Optimizer.load_state_dict

    @functools.wraps(load)
    def load_and_note(optimizer: torch.optim.Optimizer, state_dict: Mapping[str, Any]) -> None:
        load(optimizer, state_dict)  # type: ignore[arg-type]
        _note_rounded(optimizer, state_dict)
        if optimizer in _has_masters:
            keep_float32(optimizer)

    torch.optim.Optimizer.load_state_dict = load_and_note  # type: ignore[assignment, method-assign]


_watch_loads()


def _no_engine() -> None:
    """Stand for an engine that is gone."""


def _register_hook(state: OptimizerState) -> Any:
    """Have the optimizer call the object, which it keeps alive."""

    def before_state_dict(optimizer: torch.optim.Optimizer) -> None:
        state.before_state_dict()

    return state._optimizer.register_state_dict_pre_hook(before_state_dict)
