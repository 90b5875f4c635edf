"""Optimizers of the user's, which run in Python, as the engine sees them."""

from __future__ import annotations

import collections
import contextlib
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .. import _core
from ..changed_module import STEPS_BEFORE_WARNING, warn_of_untrained
from ..groups import WrappedOptimizer, first_needed_argument
from ..parameters import EngineParameters
from .recipe import LoopRecipe

# A rank that joins a run has none yet, and one that lacks steps may be at another one.
YOURS = "the optimizers of the loop"


class NoUpdate(torch.optim.Optimizer):
    """Leaves the parameters as they are, and the gradients to the user's optimizer."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.0})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Change nothing."""
        return None


class UserOptimizer(WrappedOptimizer):
    """An optimizer of the user's, which runs in Python, so that its states are where they were."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        trained: EngineParameters,
        recipe: LoopRecipe | None,
    ) -> None:
        _refuse_several_updates(optimizer)
        if recipe is not None:
            recipe.check(optimizer)
        self._recipe = recipe
        super().__init__(optimizer, trained)
        if self.state is not None:
            self.state.release()
        self.rule = self.state = None
        self.description = YOURS
        # The user's own call of step() runs the hooks, and the engine has all gradients then.
        self.sees_whole_step = False

    def ids(self) -> set[int]:
        """Return the ids of its parameters."""
        return {id(p) for group in self.optimizer.param_groups for p in group["params"]}

    def step(self, *told: Any) -> None:
        """Update the parameters that are the optimizer's. Gradients of others' stay."""
        *rest, gradients = told
        own = self.ids()
        due = [(i, grad) for i, grad in gradients if id(self._trained.tensors[i]) in own]
        recipe = self._recipe
        with contextlib.nullcontext() if recipe is None else recipe.scope(self.optimizer):
            super().step(*rest, due)  # type: ignore[call-arg]

    def begin_step(self) -> None:
        """Leave hooks to the user's call of step()."""

    def end_step(self, num_skipped: Callable[[], int]) -> None:
        """Leave hooks to the user's call of step()."""
        self.optimizer._opt_called = True  # type: ignore[attr-defined]

    def check_parameters(self) -> None:
        """Take any part of the parameters."""

    def _replace_habits(self) -> None:
        """Leave step() and zero_grad() as they are."""


class LaterParameters:
    """Names, once, parameters that begin to require gradients and that no optimizer gets.

    An optimizer becomes known when it steps, and a model may have several, so that parameters are
    named only when no known optimizer has had them for some steps.

    Parameters
    ----------
    module
        The module, as it was wrapped.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        # Kept alive, so that no other parameter gets the id of one of them.
        self._first = {id(p): p for p in module.parameters() if p.requires_grad}
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._num_lacking = 0

    def known(self) -> list[torch.optim.Optimizer]:
        """Return the optimizers that have stepped."""
        return list(self._optimizers)

    def lacking(
        self, optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, torch.nn.Parameter]]
    ) -> list[str]:
        """Return the names of parameters that neither this optimizer nor one before it has."""
        self._optimizers.add(optimizer)
        groups = [group for known in self._optimizers for group in known.param_groups]
        own = {id(p) for group in groups for p in group["params"]}
        return [name for name, p in named if p.requires_grad and id(p) not in own]

    def has_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Note a step of an optimizer, and warn if it is time."""
        self._optimizers.add(optimizer)
        later = [
            (name, p)
            for name, p in self._module.named_parameters()
            if p.requires_grad and id(p) not in self._first
        ]
        if not later:
            return
        lacking = self.lacking(optimizer, later)
        self._num_lacking = self._num_lacking + 1 if lacking else 0
        if self._num_lacking == STEPS_BEFORE_WARNING:
            warn_of_untrained(lacking)


class UserOptimizers:
    """The user's optimizers of the parameters that one trainer trains.

    Parameters
    ----------
    trained
        The parameters.
    later
        What knows the optimizers that have stepped.
    recipe
        What makes steps longer; None: they are as the optimizers make them.
    """

    def __init__(
        self, trained: EngineParameters, later: LaterParameters, recipe: LoopRecipe | None
    ) -> None:
        self._trained = trained
        self._own: list[UserOptimizer] = []
        self.later = later
        self.states: list[tuple[list[int], dict[str, Any]]] = []
        """States for optimizers that have not stepped yet, with the numbers of their parameters."""
        self._recipe = recipe

    def own_of(self, optimizer: torch.optim.Optimizer) -> UserOptimizer:
        """Return an optimizer as the engine sees it."""
        for known in self._own:
            if known.optimizer is optimizer:
                return known
        # A new optimizer takes the place of one that it has replaced.
        ids = {id(p) for group in optimizer.param_groups for p in group["params"]}
        self._own = [known for known in self._own if ids.isdisjoint(known.ids())]
        own = UserOptimizer(optimizer, self._trained, self._recipe)
        self._own.append(own)
        return own

    def take_state(self, optimizer: torch.optim.Optimizer, indices: list[int]) -> None:
        """Give an optimizer the state that one of the same parameters has on another rank."""
        for i, (others, state) in enumerate(self.states):
            if others == indices:
                del self.states[i]
                optimizer.load_state_dict(state)
                return


def _refuse_several_updates(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer whose step() makes more than one update, because every update mixes.

    Raises
    ------
    ConfigError
        For an optimizer that holds another one, and for one whose step() calls its closure
        itself, as LBFGS.
    """
    kind = type(optimizer).__name__
    for name, value in vars(optimizer).items():
        held = value if isinstance(value, (list, tuple)) else [value]
        for inner in held:
            if isinstance(inner, torch.optim.Optimizer):
                raise _core.ConfigError(
                    f"the optimizer {kind} holds another one, {type(inner).__name__}, in its "
                    f"attribute {name}, and calls that one's step() inside of its own, where every "
                    f'step() would mix the model once more, allowed: algorithm="allreduce" with '
                    f"{kind}, or {type(inner).__name__} alone"
                )
    needed = first_needed_argument(type(optimizer).step.__get__(optimizer))
    if isinstance(optimizer, torch.optim.LBFGS) or needed is not None:
        raise _core.ConfigError(
            f"{kind} calls its closure several times in a step, and every step mixes the model, "
            'allowed: algorithm="allreduce", or another optimizer'
        )


def without_parameters(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return an optimizer of the same class, whose step() leaves these parameters alone."""
    other = object.__new__(type(optimizer))
    other.__dict__.update(optimizer.__dict__)
    other.state = collections.defaultdict(dict)
    other.param_groups = []
    for group in optimizer.param_groups:
        # Some optimizers write tensors of their groups in place.
        own = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in group.items()}
        own["params"] = [torch.nn.Parameter(p.new_empty(0)) for p in group["params"][:1]]
        other.param_groups.append(own)
    return other
