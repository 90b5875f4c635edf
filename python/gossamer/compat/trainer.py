"""What exchanges below the drop-in: gradients become means, and the user's optimizers update."""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from .. import _core
from ..autograd import increment_versions
from ..changed_module import some
from ..checks import compare_modules, share_tensors
from ..data_parallel import DecentralizedDataParallel
from ..distributed import Session
from ..optimizer_state import forget_float32, keep_float32
from ..own_topologies import AnyTopology
from .joining import Joining, refuse_scaler
from .known_parameters import KnownParameters
from .nonfinite_sums import NonfiniteSums
from .recipe import LoopRecipe
from .user_optimizers import YOURS, LaterParameters, NoUpdate, UserOptimizers, without_parameters


class Turn:
    """Which backward passes sum gradients. As in PyTorch, the forward passes decide."""

    def __init__(self) -> None:
        self.shares_buffers = True
        """Whether the next forward pass begins with rank 0's buffers."""
        self._awaits_sum = False
        self._awaits_own = False
        self._last_sums = True

    def has_passed_forward(self, sums: bool) -> None:
        """Note a forward pass that is to be trained on; `sums`: it was outside of no_sync()."""
        self.shares_buffers = sums
        self._awaits_sum = self._awaits_sum or sums
        self._awaits_own = self._awaits_own or not sums

    def take_backward(self) -> bool:
        """Return whether the backward pass that begins sums gradients."""
        if self._awaits_sum:
            self._awaits_sum, self._last_sums = False, True
        elif self._awaits_own:
            self._awaits_own, self._last_sums = False, False
        # A further pass through one graph does what the last one did. In PyTorch it never sums, and
        # the ranks' models part.
        return self._last_sums


class Before(NamedTuple):
    """What a trainer goes on from that takes another one's place."""

    known: KnownParameters
    turn: Turn
    later: LaterParameters
    sums: dict[str, float]


class Trainer(DecentralizedDataParallel):
    """Leaves gradients to the user's optimizers, which it gets to know when they step first."""

    _updates_in_backward = False
    _how_to_collect = (
        "make the forward pass inside no_sync(), and call finish_step() of the "
        "DistributedDataParallel between backward() and optimizer.step()"
    )

    def __init__(
        self,
        module: torch.nn.Module,
        sums_gradients: bool,
        topology: AnyTopology | None,
        before: Before | None,
        **options: Any,
    ) -> None:
        self._known = KnownParameters(None if before is None else before.known)
        given = dict(options.pop("options") or {})
        self._nonfinite = NonfiniteSums(skips=given.get("nonfinite") == "skip")
        if sums_gradients:
            given["keeps_nonfinite"] = True
        else:
            # The loop clips gradients and calls the optimizers.
            given["applies_recipe"] = True
        super().__init__(module, NoUpdate, topology, options=given, **options)
        self._optimizer.description = YOURS
        self._sums_gradients = sums_gradients
        self._order: list[int] = []
        self._known.begin(module, self._trained)
        later = LaterParameters(module) if before is None else before.later
        self._recipe = None if sums_gradients else self._new_recipe()
        self._optimizers = UserOptimizers(self._trained, later, self._recipe)
        self.renew: Callable[[], Trainer]
        """Has another trainer take this one's place, which trains what this one lacks."""
        self._is_stepping = False
        self.turn = Turn() if before is None else before.turn
        self.joining: Joining | None = None
        """Whom this rank tells what it does; None: outside of join()."""
        if before is not None:
            self._step_sums.add(before.sums)
        # Where gradients are not summed, the optimizer's step() calls finish_step().
        self.set_accumulate_grad(not sums_gradients)
        watch_optimizers(self)

    @property
    def is_average(self) -> bool:
        """Whether the parameters are those of the mean model."""
        return self._guard.scope == "global_average()"

    def passed_on(self) -> Before:
        """Return what a trainer needs that takes this one's place."""
        return Before(self._known, self.turn, self._optimizers.later, self.metrics())

    def lacks(self, parameters: Iterable[torch.nn.Parameter]) -> bool:
        """Return whether any is to be trained that was frozen, or not there, when this began."""
        return self._known.lacks(parameters)

    def check_kinds(self) -> None:
        """Refuse parameters that have been converted, before a forward pass fails because of it."""
        if not self._guard.is_finished:
            self._trained.check_kinds()

    def watch_later_parameters(self) -> None:
        """Have the steps of optimizers that have only parameters of later tell the trainer."""
        for i in self._known.watch_later(_trainers):
            _trainers[i] = self

    @property
    def ids_watched(self) -> Iterator[int]:
        """The ids of parameters whose optimizers tell the trainer of their steps."""
        return self._known.ids_watched

    @property
    def watches(self) -> bool:
        """Whether it wants to know of an optimizer's step, which it has not called itself."""
        return not self._is_stepping

    def metrics(self) -> dict[str, float]:
        """Return the sums since the drop-in was made, those of earlier trainers included."""
        found = super().metrics()
        found["skipped_steps"] += self._nonfinite.num_left_out
        return found

    def close(self, *, failed: bool) -> None:
        """End the engine's work; optimizers of these parameters step as without the drop-in."""
        for i in self.ids_watched:
            if _trainers.get(i) is self:
                del _trainers[i]
        if self._recipe is not None:
            self._recipe.close()
        super().close(failed=failed)

    def _new_recipe(self) -> LoopRecipe | None:
        if not self._follows_recipe:
            return None
        own = weakref.ref(self)

        # No reference to the trainer, which would live on with this function of its own.
        def factor() -> float:
            trainer = own()
            return 1.0 if trainer is None else trainer.recipe_factor

        return LoopRecipe(self._trained.tensors, factor)

    # An optimizer of the user's steps.

    def before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Take the place of an optimizer's step, where gradients are not summed.

        Returns
        -------
        tuple or None
            With what the optimizer's own function shall be called: an optimizer like this one,
            without parameters, so that only a closure is called.
        """
        if self._sums_gradients:
            self._take_later_state(optimizer)
            self._check_replaced(optimizer)
            self._nonfinite.check(optimizer, self._trained.tensors)
            forget_float32(optimizer)
            return None
        params = [p for group in optimizer.param_groups for p in group["params"]]
        if self.lacks(params):
            self._known.check_others(params)
            return self.renew().before_step(optimizer, args, kwargs)
        self._take_later_state(optimizer)
        keep_float32(optimizer)
        self._optimizer = self._optimizers.own_of(optimizer)
        return (without_parameters(optimizer), *args[1:]), kwargs

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Make the step: mix, have the optimizer update, and send."""
        self._optimizers.later.has_stepped(optimizer)
        if self._sums_gradients:
            return
        # A GradScaler tells an optimizer that divides by the scale itself, as a fused one.
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and found_inf.item():
            return
        updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for i, p in enumerate(self._trained.tensors):
            # What another optimizer updates is mixed alone.
            self._gradients.is_offered[i] = id(p) not in updated
        self._is_stepping = True
        try:
            self.finish_step()
        finally:
            self._is_stepping = False

    def agree_on_overflow(
        self, found: dict[torch.device, torch.Tensor]
    ) -> dict[torch.device, torch.Tensor]:
        """Tell a GradScaler of an overflow on any rank, so that all leave out a step. Collective.

        Parameters
        ----------
        found
            By device, whether this rank's gradients have overflowed.
        """
        if self.joining is not None:
            refuse_scaler()
        if self._session.is_elastic:
            raise _core.ConfigError(
                "torch.amp.GradScaler: its scale is counted by ranks that stay the same, and this "
                "session has survive=True, allowed: bfloat16, which needs no scaler"
            )
        if self._sums_gradients:
            return found
        (total,) = self._session.sum([float(sum(flag.item() for flag in found.values()))])
        devices = list(found) or [self._trained.device]
        return {device: torch.full((), float(total > 0.0), device=device) for device in devices}

    def _check_replaced(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse an optimizer with a replaced parameter if no optimizer has the new one."""
        if not self._known.replaced:
            return
        names = self._optimizers.later.lacking(optimizer, self._known.replaced_of(optimizer))
        if names:
            raise _core.ConfigError(
                f"the optimizer has old parameters of the names {some(names)}: others have taken "
                "their places in the module, as after load_state_dict(assign=True), and no "
                "optimizer has these, allowed: load_state_dict() without assign, or a new "
                f"optimizer, as {type(optimizer).__name__}(model.parameters())"
            )

    def after_load(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep states in float32 where the optimizer updates float32 master copies."""
        if not self._sums_gradients:
            keep_float32(optimizer)

    # Ranks with different numbers of batches.

    def begin_join(self, joining: Joining) -> None:
        """Tell the others from now on what this rank does."""
        self._check("join()")
        if self._session.is_elastic:
            raise _core.ConfigError("join(): with survive=True no rank may end earlier than others")
        if self._engine.is_asynchronous:
            raise _core.ConfigError(
                "join(): the ranks of this algorithm make different numbers of steps anyway"
            )
        if self.joining is not None:
            raise _core.ConfigError("join() inside of join(), allowed: one of them")
        self.joining, self._batches.are_counted = joining, True

    def counts_batches(self, has_one: bool) -> None:
        """Tell in every step whether this rank has a batch, or no more."""
        self._batches.are_counted, self._batches.given = has_one, None

    def end_join(self) -> None:
        """Make steps with the others alone again."""
        self.joining, self._batches.are_counted = None, False

    def step_without_batch(self) -> None:
        """Make a step of the others, which changes nothing here but what is mixed. Collective."""
        for p in self._trained.tensors:
            p.grad = None
        # An optimizer that the engine calls has nothing to update, and gives no sign of a step.
        self._is_stepping = True
        try:
            self.finish_step()
        finally:
            self._is_stepping = False
        for p in self._trained.tensors:
            p.grad = None

    def take_end(self, joining: Joining, buffers: list[torch.Tensor]) -> None:
        """Where gradients are averaged: be as the last rank that had a batch. Collective.

        As in PyTorch, the parameters and the buffers are. Unlike there, the optimizers are as well,
        so that the ranks' models stay equal afterwards.
        """
        if not self._sums_gradients:
            return
        root = joining.present[-1]
        share_tensors(self._session, buffers, root)
        if not joining.is_uneven:
            return
        share_tensors(self._session, self.module.parameters(), root)
        own = [(self._known.indices_of(o), o) for o in self._optimizers.later.known()]
        self._optimizers.states = joining.share_optimizers(own)
        for _, optimizer in own:
            self._take_later_state(optimizer)

    def _take_later_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Give an optimizer the state that one of the same parameters has on another rank."""
        if self._optimizers.states:
            self._optimizers.take_state(optimizer, self._known.indices_of(optimizer))

    def _count_batches(self, *, has_one: bool) -> int:
        if self.joining is None:
            return super()._count_batches(has_one=has_one)
        given = self._batches.given
        weight = 1.0 if given is None else given
        weights = self.joining.weights(weight)
        if self._sums_gradients and not (given is None and self.joining.divides_by_all):
            self._batches.share(weight, sum(weights))
        return len(weights)

    # Ranks that are lost, and that join.

    def enter(self) -> None:
        """Begin, or join the others, before a forward pass that is to be trained on."""
        self._survival.enter()

    def _numbers(self) -> dict[str, Any]:
        """Return also the states of the user's optimizers, and the parameters that they updated.

        Where gradients are averaged, a rank joins before the others' optimizers have stepped.
        """
        own = super()._numbers()
        known = self._optimizers.later.known()
        own["optimizers"] = [(self._known.indices_of(o), o.state_dict()) for o in known]
        own["parameters"] = [p.detach().cpu() for p in self._averaged()]
        return own

    def _take_numbers(self, numbers: Mapping[str, Any]) -> None:
        super()._take_numbers(numbers)
        self._optimizers.states = list(numbers["optimizers"])
        with torch.no_grad():
            for p, value in zip(self._averaged(), numbers["parameters"], strict=True):
                p.copy_(value)

    def _averaged(self) -> list[torch.nn.Parameter]:
        return self._trained.tensors if self._sums_gradients else []

    # The steps of the engine.

    def _begin_with(self, session: Session, module: torch.nn.Module) -> None:
        if self._known.is_first:
            super()._begin_with(session, module)
            return
        compare_modules(session, module)
        # The ranks' models may differ by now. New layers begin with rank 0's values.
        share_tensors(session, [p for p in module.parameters() if id(p) not in self._known.seen])

    def _begin_backward(self) -> None:
        if self._sums_gradients:
            self.set_accumulate_grad(not self.turn.take_backward())
        super()._begin_backward()

    def _end_step(self) -> None:
        super()._end_step()
        if self._recipe is not None:
            self._recipe.end_step()
        if self._sums_gradients:
            self._nonfinite.found = self._engine.take_nonfinite()

    def _masters(self) -> contextlib.AbstractContextManager[None]:
        # The user's optimizer updates the parameters themselves where gradients are summed.
        return contextlib.nullcontext() if self._sums_gradients else super()._masters()

    def _take_in_changes(self) -> None:
        """Leave it to renew(), which the user's step() and forward pass ask."""

    def _arrived(self, i: int) -> None:
        self._order.append(i)

    def _start(self) -> None:
        # Ranks may use different parameters, and a rank's own come first. The engine merges the
        # orders.
        rest = reversed(range(len(self._trained.tensors)))
        for i in dict.fromkeys(itertools.chain(self._order, rest)):
            self._engine.arrived(i)
        super()._start()

    def _adopt(self) -> None:
        # Where ranks exchange gradients, no parameters are under way, so the user may write them.
        if self._sums_gradients:
            self._trained.check_places()
            if self._engine.has_started:
                # What the user's optimizer has written.
                self._engine.write_masters()
        else:
            super()._adopt()

    def _after_update(self, parameters: list[torch.nn.Parameter]) -> None:
        # Gradients stay until the user's zero_grad().
        if not self._sums_gradients:
            increment_versions(parameters)


# By the id of each parameter. A trainer keeps its parameters, so that no id is used again.
_trainers: weakref.WeakValueDictionary[int, Trainer] = weakref.WeakValueDictionary()
_watches = False


def watch_optimizers(trainer: Trainer) -> None:
    """Have the steps of every optimizer that has parameters of `trainer` tell the trainer."""
    global _watches
    for i in trainer.ids_watched:
        _trainers[i] = trainer
    if not _watches:
        register_optimizer_step_pre_hook(_before_step)
        register_optimizer_step_post_hook(_after_step)
        _share_overflows()
        _keep_loaded_states()
        _watches = True


def _trainer_of(optimizer: torch.optim.Optimizer) -> Trainer | None:
    """Return the trainer whose parameters an optimizer has; None: it is told nothing of it."""
    if isinstance(optimizer, NoUpdate):
        return None
    for group in optimizer.param_groups:
        for p in group["params"]:
            trainer = _trainers.get(id(p))
            if trainer is not None:
                return trainer if trainer.watches else None
    return None


def _before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
    trainer = _trainer_of(optimizer)
    return None if trainer is None else trainer.before_step(optimizer, args, kwargs)


def _after_step(optimizer: torch.optim.Optimizer, *args: Any) -> None:
    trainer = _trainer_of(optimizer)
    if trainer is not None:
        trainer.after_step(optimizer)


def _share_overflows() -> None:
    """Have every torch.amp.GradScaler ask all ranks, where an optimizer's gradients are its own.

    PyTorch has no hook there: a rank whose gradients have overflowed does not call the optimizer.
    """
    from torch.amp.grad_scaler import GradScaler

    unscale = GradScaler._unscale_grads_

    @functools.wraps(unscale)
    def unscale_on_all_ranks(
        scaler: GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any
    ) -> dict[torch.device, torch.Tensor]:
        found = unscale(scaler, optimizer, *args, **kwargs)
        trainer = _trainer_of(optimizer)
        return found if trainer is None else trainer.agree_on_overflow(found)

    GradScaler._unscale_grads_ = unscale_on_all_ranks  # type: ignore[assignment, method-assign]


def _keep_loaded_states() -> None:
    """Have the loading of every optimizer's states tell the trainer of its parameters.

    PyTorch has no hook there for all optimizers, and they load before they have stepped.
    """
    load = torch.optim.Optimizer.load_state_dict

    @functools.wraps(load)
    def load_and_tell(optimizer: torch.optim.Optimizer, state_dict: Mapping[str, Any]) -> None:
        load(optimizer, state_dict)  # type: ignore[arg-type]
        trainer = _trainer_of(optimizer)
        if trainer is not None:
            trainer.after_load(optimizer)

    torch.optim.Optimizer.load_state_dict = load_and_tell  # type: ignore[assignment, method-assign]
