"""The wrapped optimizer: its numbers for the engine, or its work in Python."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from . import _core
from .optimizer_state import OptimizerState
from .optimizers import Rule, needs_own_step, rules_of, steps_by_parameter
from .parameters import EngineParameters

__all__ = ["WrappedOptimizer", "check_step", "first_needed_argument", "replace_step"]


# What the wrapper replaces in the optimizer's object.
_REPLACED = ("step", "zero_grad", "_step_supports_amp_scaling")


class WrappedOptimizer:
    """An optimizer whose work the engine does, or that runs between mixing and sending.

    Parameters
    ----------
    optimizer
        The optimizer; its step() and zero_grad() do nothing from here on.
    trained
        The parameters that require gradients, in the engine's order.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, trained: EngineParameters) -> None:
        self.optimizer = optimizer
        self._trained = trained
        check_step(optimizer)
        self._known: set[int] = set()
        self.check_parameters()
        self._shape: list[tuple[int, int]] = []
        self._groups: list[list[int]] = []
        self._told: list[Rule] | None = None
        rules = None if needs_own_step(optimizer) else rules_of(optimizer)
        self._kind = rules[0].kind if rules else ""
        self.description = self._kind or type(optimizer).__name__
        """What is equal on all ranks that train together."""
        self.rule = rules[0].text if rules else None
        """The engine's rule; None: the optimizer runs in Python."""
        self.sees_whole_step = self.rule is None and not steps_by_parameter(optimizer)
        """Whether step() is called once for all parameters, after the last gradient."""
        self.state = OptimizerState(optimizer, rules[0], trained) if rules else None
        """The engine's states; None: the optimizer runs in Python."""
        self.num_skipped = 0
        """The steps left out so far; -1: not counted, because there were no hooks."""
        self._own_step = optimizer.step
        self._own = {name: vars(optimizer).get(name) for name in _REPLACED}
        self._num_pre_hooks = len(optimizer._optimizer_step_pre_hooks)
        self.before_update: Callable[[list[torch.nn.Parameter]], None] = _nothing
        """Called with parameters, which are mixed, before an update in Python."""
        self._replace_habits()

    def take_scaler(self) -> None:
        """Let scaler.step() do no harm, because the wrapper knows the scaler."""
        self.optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]

    def has(self, p: torch.nn.Parameter) -> bool:
        """Return whether the optimizer has a parameter."""
        return any(p is own for group in self.optimizer.param_groups for own in group["params"])

    @property
    def shape(self) -> list[tuple[int, int]]:
        """Which groups there are, and how many parameters each has."""
        return [(id(group), len(group["params"])) for group in self.optimizer.param_groups]

    def renew(self, engine: _core.Engine) -> None:
        """Go on with an engine that has other parameters."""
        self._told = None
        self._shape = []
        if self.state is not None and engine.has_started:
            self.state.renew(engine)

    def tell(self, engine: _core.Engine) -> None:
        """Tell the engine what has changed in the optimizer since the last step."""
        rate = self.optimizer.param_groups[0].get("lr")
        # Where the optimizer finds its own rate, algorithms take it for one that stays the same.
        engine.tell_lr(1.0 if rate is None else float(rate))
        if self.rule is None:
            return
        if self.state is not None:
            self.state.before_step(engine)
        rules = rules_of(self.optimizer)
        if rules is None:
            raise _core.ConfigError(
                "the optimizer's groups are of different kinds now; make such changes before "
                "wrapping the module"
            )
        if rules[0].kind != self._kind:
            raise _core.ConfigError(
                f"the optimizer is {rules[0].kind} now, and was {self._kind} when the module was "
                "wrapped; make such changes before wrapping the module"
            )
        if self.shape != self._shape:
            self._shape, self._groups, self._told = self.shape, self._indices(), None
        if rules == self._told:
            return
        for g, rule in enumerate(rules):
            before = self._told[g] if self._told is not None else None
            if rule != before:
                text = "" if before is not None and before.text == rule.text else rule.text
                engine.tell(self._groups[g], rule.lr, rule.weight_decay, text)
        self._told = rules

    @torch.no_grad()
    def step(
        self,
        buckets: list[list[int]],
        scale: float,
        factors: list[float],
        gradients: list[tuple[int, Any]],
    ) -> None:
        """Update the parameters of one bucket, or of all buckets, in Python.

        Parameters
        ----------
        buckets
            The indices of each bucket's parameters.
        scale
            Learning rates are multiplied by this, as an algorithm in a directed topology wants it.
        factors
            The gradients of each bucket are multiplied by this first.
        gradients
            Parameters whose gradient is not the rank's own: a sum over ranks, or None.
        """
        for i, found in gradients:
            self._trained.give_gradient(i, found)
        parameters = [self._trained.tensors[i] for bucket in buckets for i in bucket]
        for bucket, factor in zip(buckets, factors, strict=True):
            for i in bucket if factor != 1.0 else []:
                grad = self._trained.tensors[i].grad
                if grad is not None:
                    grad.mul_(factor)
        groups = self.optimizer.param_groups
        kept = [group["params"] for group in groups]
        inside = set(map(id, parameters))
        if not self.sees_whole_step:
            for group in groups:
                group["params"] = [p for p in group["params"] if id(p) in inside]
        try:
            with _scaled_rates(self.optimizer, scale):
                self.before_update(parameters)
                self._make_step()
        finally:
            for group, params in zip(groups, kept, strict=True):
                group["params"] = params

    def _make_step(self) -> None:
        """Call the optimizer's step(); hooks of a step that comes in parts are run elsewhere."""
        if self.sees_whole_step:
            try:
                self._own_step()
            except TypeError as error:
                if "'NoneType' object is not callable" not in str(error):
                    raise
                raise _core.ConfigError(
                    f"{type(self.optimizer).__name__}.step() has called its closure, and "
                    "backward() makes the step once and has none to give, allowed: optimizers "
                    "whose step() needs no closure"
                ) from error
            return
        step = type(self.optimizer).step
        getattr(step, "__wrapped__", step)(self.optimizer)

    def begin_step(self) -> None:
        """Call the hooks before a step that PyTorch does not make as a whole."""
        if self.sees_whole_step:
            return
        own = self.optimizer._optimizer_step_pre_hooks
        if len(own) > self._num_pre_hooks:
            self._num_pre_hooks = len(own)
            warnings.warn(
                "the optimizer has got a hook before its step, which now runs before the step's "
                "gradients are there; register it before wrapping the module, and it sees them",
                stacklevel=2,
            )
        hooks = torch_optimizer._global_optimizer_pre_hooks.values()
        self._call(itertools.chain(hooks, own.values()))

    def end_step(self, num_skipped: Callable[[], int]) -> None:
        """Call the hooks after a step that counts, and keep PyTorch's schedules from warning."""
        self.optimizer._opt_called = True  # type: ignore[attr-defined]
        own = self.optimizer._optimizer_step_post_hooks
        every = torch_optimizer._global_optimizer_post_hooks
        if self.sees_whole_step or (not own and not every):
            self.num_skipped = -1
            return
        before, self.num_skipped = self.num_skipped, num_skipped()
        if before in (-1, self.num_skipped):
            self._call(itertools.chain(own.values(), every.values()))

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers of the groups, and the states of an optimizer that runs in Python."""
        return self.optimizer.state_dict() if self.state is None else self.state.packed()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what state_dict() has returned."""
        try:
            self.optimizer.load_state_dict(state)
        except ValueError as error:
            raise _core.CheckpointError(
                f"the optimizer's state does not fit its groups: {error}; give the optimizer the "
                "groups that it had when the state was saved"
            ) from error
        self._told = None

    @contextlib.contextmanager
    def with_own_step(self) -> Iterator[None]:
        """Give step() and zero_grad() of an optimizer in Python back inside the scope."""
        self.release()
        try:
            yield
        finally:
            self._replace_habits()

    def release(self) -> None:
        """Give step() and zero_grad() back, when the engine ends."""
        if self.state is not None:
            self.state.release()
        for name, own in self._own.items():
            if own is not None:
                setattr(self.optimizer, name, own)
            else:
                vars(self.optimizer).pop(name, None)

    def _call(self, hooks: Iterable[Callable[..., Any]]) -> None:
        for hook in list(hooks):
            hook(self.optimizer, (self.optimizer,), {})

    def _indices(self) -> list[list[int]]:
        index = {id(p): i for i, p in enumerate(self._trained.tensors)}
        groups = self.optimizer.param_groups
        return [[index[id(p)] for p in g["params"] if id(p) in index] for g in groups]

    def check_parameters(self) -> None:
        """Refuse an optimizer that lacks a parameter of the module, or has others."""
        index = {id(p) for p in self._trained.tensors}
        groups = self.optimizer.param_groups
        own = {id(p) for group in groups for p in group["params"]}
        if not index <= own:
            raise _core.ConfigError(
                f"the optimizer has {len(index & own)} of the {len(index)} parameters that "
                "require gradients, allowed: all of them"
            )
        # Of a part that has been replaced, the optimizer may keep the old parameters.
        self._known |= index
        others = [
            f"{g}.{i} {_name_of(group, i)}{list(p.shape)}"
            for g, group in enumerate(groups)
            for i, p in enumerate(group["params"])
            if p.requires_grad and id(p) not in self._known
        ]
        if others:
            raise _core.ConfigError(
                f"the optimizer has {len(others)} parameters that the module has not, so that they "
                f"would never move (group.place, shape): {', '.join(others[:5])}"
                f"{', ...' if len(others) > 5 else ''}; allowed: parameters of the module alone. "
                "Make them parameters of the module, or give them to an optimizer of their own"
            )

    def _replace_habits(self) -> None:
        has_warned = False

        def step(
            optimizer: torch.optim.Optimizer,
            closure: Callable[[], Any] | None = None,
            grad_scaler: Any = None,
            **kwargs: Any,
        ) -> Any:
            nonlocal has_warned
            if grad_scaler is not None:
                raise _core.ConfigError(
                    "a GradScaler makes a step of gradients that backward() has used without "
                    "dividing them by the scale, allowed: "
                    "DecentralizedDataParallel(..., scaler=scaler)"
                )
            if closure is not None:
                # Its backward() makes the step.
                with torch.enable_grad():
                    return closure()
            if not has_warned:
                warnings.warn(
                    "backward() makes the whole step, and has used the gradients; leave out "
                    "step(), and clip by model.clip_grad_norm_() or the option grad_clip",
                    stacklevel=2,
                )
            has_warned = True
            return None

        def zero_grad(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            return None

        replace_step(self.optimizer, step)
        # A GradScaler then gives itself to step().
        self.optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
        bound = types.MethodType(zero_grad, self.optimizer)
        self.optimizer.zero_grad = bound  # type: ignore[method-assign]


def _name_of(group: dict[str, Any], i: int) -> str:
    names = group.get("param_names")
    return f"{names[i]} " if names else ""


@contextlib.contextmanager
def _scaled_rates(optimizer: torch.optim.Optimizer, scale: float) -> Iterator[None]:
    """Multiply the learning rates inside the scope. A rate that the optimizer sets there counts."""
    scaled = []
    for group in optimizer.param_groups if scale != 1.0 else []:
        if group.get("lr") is None:
            raise _core.ConfigError(
                f"{type(optimizer).__name__} has no number lr in its groups, and the topology has "
                "arcs, whose weights multiply learning rates, allowed: a topology of edges, or an "
                "optimizer with an lr"
            )
        scaled.append((group, group["lr"], group["lr"] * scale))
        group["lr"] = scaled[-1][2]
    try:
        yield
    finally:
        for group, lr, given in scaled:
            group["lr"] = lr if group["lr"] is given else group["lr"] / scale


def check_step(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer whose step backward() cannot make.

    Raises
    ------
    ConfigError
        For a step() that must be given something, as that of LBFGS; for sparse gradients; for a
        step that shall be differentiated; and for an object that PyTorch's class has not made.
    """
    kind = type(optimizer).__name__
    # A schedule may have replaced the object's own step() by a function.
    name = first_needed_argument(type(optimizer).step.__get__(optimizer))
    if name is not None:
        raise _core.ConfigError(
            f"{kind}.step() needs {name}, and backward() makes the step once "
            "and has nothing to give, allowed: optimizers whose step() needs nothing"
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise _core.ConfigError(
            f"{kind} takes sparse gradients alone, and ranks exchange dense ones, allowed: Adam, "
            "with sparse=False in every torch.nn.Embedding"
        )
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise _core.ConfigError(
            f"{kind} has differentiable=True, and backward() keeps no graph of the step that it "
            "makes, allowed: differentiable=False"
        )
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise _core.ConfigError(
            f"{kind}.__init__() does not call torch.optim.Optimizer.__init__(), so that it has no "
            "hooks and no state_dict() in this PyTorch, allowed: a newer version of the class"
        )


def first_needed_argument(call: Callable[..., Any]) -> str | None:
    """Return the name of the first argument that a call must have; None: it needs none."""
    try:
        arguments = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return None
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [a.name for a in arguments if a.default is a.empty and a.kind not in kinds]
    return needed[0] if needed else None


def _nothing(parameters: list[torch.nn.Parameter]) -> None:
    """Do nothing with the parameters of a bucket."""


def replace_step(optimizer: torch.optim.Optimizer, step: Callable[..., Any]) -> None:
    """Have ``optimizer.step()`` call a function, whose first argument is the optimizer."""
    # A schedule would otherwise wrap the function, and warn of one that it has not wrapped.
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    # Bound, because schedules of PyTorch expect a method.
    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
