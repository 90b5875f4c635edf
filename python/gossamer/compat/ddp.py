"""A drop-in for torch.nn.parallel.DistributedDataParallel.

A program changes one import, and keeps its loop::

    from gossamer.compat.ddp import DistributedDataParallel

    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters())
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()  # gradients are means over the ranks
        optimizer.step()
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._pytree import tree_map_only

from .. import _core
from ..autograd import increment_versions
from ..checks import compare_modules, share_tensors
from ..data_parallel import DecentralizedDataParallel
from ..distributed import Session, initialize_dist
from ..groups import WrappedOptimizer
from ..parameters import EngineParameters

__all__ = ["DistributedDataParallel"]

# Arguments of the original that change how it works, not the result; and those with no counterpart.
_IGNORED = {"skip_all_reduce_unused_params", "bucket_cap_mb_list"}
_REFUSED = {
    "delay_all_reduce_named_params",
    "device_mesh",
    "mixed_precision",
    "param_to_hook_all_reduce",
    "process_group",
}


class DistributedDataParallel(torch.nn.Module):
    """Trains a module in several processes, with the interface of PyTorch's class of this name.

    With the algorithm "allreduce", ``backward()`` leaves the mean over all ranks in every
    ``p.grad``. With any other one, as "gossip", gradients are the rank's own, and the optimizer's
    ``step()`` mixes the parameters with those of the peers, updates them, and starts the next
    exchange. The ranks' models then differ: evaluate and save inside global_average().

    Parameters that a rank or all ranks leave unused are allowed, as with
    ``find_unused_parameters=True``. A gradient that is not finite ends the run with a
    NonFiniteError when an optimizer steps with it; with ``options={"nonfinite": "skip"}``, all
    ranks leave the step out. A torch.amp.GradScaler leaves out a step on all ranks together.

    Parameters
    ----------
    module
        The module to train, on the processor or on one GPU. All ranks get rank 0's parameters and
        buffers.
    device_ids, output_device
        None, or the GPU that the module is on; inputs are then moved there.
    init_sync, process_group
        Only the original's defaults are allowed.
    broadcast_buffers
        Whether all ranks get rank 0's buffers before a forward pass that is to be trained on. Only
        with "allreduce", because buffers belong to a model, and the ranks' models are equal there.
    bucket_cap_mb
        Size in MiB at which a bucket closes; None: 25.
    dim, find_unused_parameters, check_reduction, gradient_as_bucket_view, static_graph
        Ignored.
    algorithm, topology, codec, options
        As those of gossamer.DecentralizedDataParallel.
    session
        The session to train in; None: the current one, or that of initialize_dist().
    **others
        The original's other arguments, of which only the defaults are allowed.

    Raises
    ------
    ConfigError
        For arguments that would do something else here, and as DecentralizedDataParallel does.
    """

    _trainer: _Trainer

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Sequence[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        dim: int = 0,
        broadcast_buffers: bool = True,
        init_sync: bool = True,
        process_group: None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        *,
        algorithm: str | Mapping[str, Any] = "allreduce",
        topology: str | Mapping[str, Any] | None = None,
        codec: str | Mapping[str, Any] = "fp32",
        options: Mapping[str, Any] | None = None,
        session: Session | None = None,
        **others: Any,
    ) -> None:
        super().__init__()
        _refuse({"process_group": process_group} | others)
        self._device = _device_of(module, device_ids, output_device)
        self.require_backward_grad_sync = True
        """As in PyTorch: whether the backward passes of the next forward passes sum gradients."""
        if not init_sync:
            raise _core.ConfigError("init_sync is False, allowed: True, rank 0's model counts")
        if bucket_cap_mb is not None and bucket_cap_mb <= 0:
            raise _core.ConfigError(f"bucket_cap_mb is {bucket_cap_mb}, allowed: more than 0")
        if session is None:
            initialize_dist()
        name = algorithm if isinstance(algorithm, str) else algorithm.get("name")
        self.module = module
        self._sums_gradients = name == "allreduce"
        self._broadcasts_buffers = broadcast_buffers and self._sums_gradients
        self._take_trainer(
            functools.partial(
                _Trainer,
                module=module,
                sums_gradients=self._sums_gradients,
                topology=topology,
                algorithm=algorithm,
                codec=codec,
                bucket_size_in_mb=25 if bucket_cap_mb is None else bucket_cap_mb,
                options=options,
                session=session,
            )
        )

    def _take_trainer(self, make: Callable[..., _Trainer], before: _Before | None = None) -> None:
        """Train by a trainer that takes the place of another one, which has finished."""
        trainer = make(before=before)
        # No child, because the names of parameters are those of the original.
        self.__dict__["_trainer"] = trainer
        own = weakref.ref(self)

        def renew() -> _Trainer:
            wrapper = own()
            assert wrapper is not None
            trainer.finish()
            wrapper._take_trainer(make, trainer.passed_on())
            return wrapper._trainer

        trainer.renew = renew

    @property
    def session(self) -> Session:
        """The session in which the wrapper trains."""
        return self._trainer.session

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> None:
        """Refuse to be wrapped by PyTorch's class, which asks every module for this."""
        raise _core.ConfigError(
            "the module is in gossamer's DistributedDataParallel already, and PyTorch's would sum "
            "its gradients once more, allowed: one of the two; with Hugging Face's accelerate, "
            "gossamer.integrations.accelerate.GossamerAccelerator wraps the plain module"
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module, with rank 0's buffers where broadcast_buffers says so."""
        is_trained = torch.is_grad_enabled()
        if is_trained and self._sums_gradients:
            self._begin_pass()
        if self._device is not None:
            args, kwargs = tree_map_only(torch.Tensor, self._move, (args, kwargs))
        output = self.module(*args, **kwargs)
        if is_trained:
            self._trainer.turn.has_passed_forward(self.require_backward_grad_sync)
        return output

    def _begin_pass(self) -> None:
        """Do what all ranks do before a forward pass that is to be trained on."""
        if self._trainer.lacks(self.module.parameters()):
            self._trainer.renew()
        if self._broadcasts_buffers and self._trainer.turn.shares_buffers:
            share_tensors(self.session, self.module.buffers())

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, non_blocking=True)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only add to the rank's own gradients, where a forward pass is made inside the scope.

        As in PyTorch, the place of the forward pass decides, and that of ``backward()`` does not.
        """
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Refuse a hook that sends gradients.

        Raises
        ------
        ConfigError
            Always: the argument codec says what ranks send.
        """
        raise _core.ConfigError(
            "register_comm_hook() with a hook that sends gradients, allowed: the argument codec, "
            'as codec="bf16" or codec="int8", which makes messages smaller'
        )

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> contextlib.AbstractContextManager[None]:
        """Do nothing, if not enabled.

        Raises
        ------
        ConfigError
            If enabled: all ranks must make the same number of steps.
        """
        if enable:
            raise _core.ConfigError(
                "join() for ranks that make different numbers of steps, allowed: enable=False, and "
                "the same number of steps on all ranks; a rank without a batch calls finish_step()"
            )
        return contextlib.nullcontext()

    def join_hook(self, **arguments: Any) -> None:
        """Refuse to be a part of torch.distributed.algorithms.Join, as join() does."""
        self.join()

    def finish_step(self) -> None:
        """Take part in a step of the other ranks without a batch of this rank's own.

        For a rank that has no batch left while others have one: it calls this in place of its
        forward and backward passes, and ``optimizer.step()`` afterwards, as the others do.
        Collective, as ``backward()`` is.
        """
        if not self._sums_gradients:
            return
        self._begin_pass()
        self._trainer.turn.has_passed_forward(True)
        self._trainer.set_accumulate_grad(not self._trainer.turn.take_backward())
        self._trainer.finish_step()

    def global_average(
        self, keep: bool = False, buffers: bool = True
    ) -> contextlib.AbstractContextManager[float]:
        """Be the mean of all ranks' models, as in DecentralizedDataParallel. Collective."""
        return self._trainer.global_average(keep, buffers)

    def write_parameters(self) -> contextlib.AbstractContextManager[None]:
        """Write parameters inside the scope, as in DecentralizedDataParallel. Collective."""
        return self._trainer.write_parameters()

    @property
    def is_average(self) -> bool:
        """Whether the program is inside global_average()."""
        return self._trainer.is_average

    def metrics(self) -> dict[str, float]:
        """Return sums over all steps: steps, bytes sent, seconds of waiting, and more."""
        return self._trainer.metrics()

    def finish(self) -> None:
        """Wait for the exchanges under way, and free the engine; the program's end does it, too."""
        self._trainer.finish()


class _Turn:
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


class _Before(NamedTuple):
    """What a trainer goes on from that takes another one's place."""

    seen: dict[int, torch.nn.Parameter]
    """By id, the parameters that the module has had."""
    turn: _Turn
    sums: dict[str, float]


class _Trainer(DecentralizedDataParallel):
    """Leaves gradients to the user's optimizers, which it gets to know when they step first."""

    _updates_in_backward = False

    def __init__(
        self,
        module: torch.nn.Module,
        sums_gradients: bool,
        topology: str | Mapping[str, Any] | None,
        before: _Before | None,
        **options: Any,
    ) -> None:
        self._before = before
        given = dict(options.pop("options") or {})
        self._skips = given.get("nonfinite") == "skip"
        if sums_gradients:
            given["keeps_nonfinite"] = True
        super().__init__(module, _NoUpdate, topology, options=given, **options)
        self._sums_gradients = sums_gradients
        self._order: list[int] = []
        self._index = {id(p): i for i, p in enumerate(self._trained.tensors)}
        own = {id(p): p for p in module.parameters()}
        self._seen = own if before is None else before.seen | own
        # An optimizer may still have the parameters of a layer that has been replaced.
        self._gone = self._seen.keys() - own.keys()
        self._own: list[_UserOptimizer] = []
        self.renew: Callable[[], _Trainer]
        """Has another trainer take this one's place, which trains what this one lacks."""
        self._nonfinite = ""
        """Which summed gradient is not finite, if the next optimizer's step must not use it."""
        self._num_left_out = 0
        self._is_stepping = False
        self.turn = _Turn() if before is None else before.turn
        self._sums_before = {} if before is None else before.sums
        # Where gradients are not summed, the optimizer's step() calls finish_step().
        self.set_accumulate_grad(not sums_gradients)
        _watch_optimizers(self)

    @property
    def is_average(self) -> bool:
        return self._scope == "global_average()"

    def passed_on(self) -> _Before:
        """Return what a trainer needs that takes this one's place."""
        return _Before(self._seen, self.turn, self.metrics())

    def lacks(self, parameters: Iterable[torch.nn.Parameter]) -> bool:
        """Return whether any is to be trained that was frozen, or not there, when this began."""
        return any(
            p.requires_grad and id(p) not in self._index and id(p) not in self._gone
            for p in parameters
        )

    @property
    def parameters_trained(self) -> list[torch.nn.Parameter]:
        return self._trained.tensors

    @property
    def watches(self) -> bool:
        """Whether it wants to know of an optimizer's step, which it has not called itself."""
        return not self._is_stepping

    def metrics(self) -> dict[str, float]:
        found = super().metrics()
        found["skipped_steps"] += self._num_left_out
        return {name: value + self._sums_before.get(name, 0) for name, value in found.items()}

    def close(self, *, failed: bool) -> None:
        for p in self._trained.tensors:
            if _trainers.get(id(p)) is self:
                del _trainers[id(p)]
        super().close(failed=failed)

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
            self._check_gradients(optimizer)
            return None
        params = [p for group in optimizer.param_groups for p in group["params"]]
        if self.lacks(params):
            self._check_others(params)
            return self.renew().before_step(optimizer, args, kwargs)
        self._optimizer = self._own_of(optimizer)
        return (_without_parameters(optimizer), *args[1:]), kwargs

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Make the step: mix, have the optimizer update, and send."""
        if self._sums_gradients:
            return
        # A GradScaler tells an optimizer that divides by the scale itself, as a fused one.
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and found_inf.item():
            return
        updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for i, p in enumerate(self._trained.tensors):
            # What another optimizer updates is mixed alone.
            self._is_offered[i] = id(p) not in updated
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
        if self._sums_gradients:
            return found
        (total,) = self._session.sum([float(sum(flag.item() for flag in found.values()))])
        devices = list(found) or [self._trained.device]
        return {device: torch.full((), float(total > 0.0), device=device) for device in devices}

    def _own_of(self, optimizer: torch.optim.Optimizer) -> _UserOptimizer:
        for own in self._own:
            if own.optimizer is optimizer:
                return own
        if isinstance(optimizer, torch.optim.LBFGS):
            raise _core.ConfigError(
                "LBFGS calls its closure several times in a step, and every step mixes the model, "
                'allowed: algorithm="allreduce", or another optimizer'
            )
        # A new optimizer takes the place of one that it has replaced.
        known = {id(p) for group in optimizer.param_groups for p in group["params"]}
        self._own = [own for own in self._own if known.isdisjoint(own.ids())]
        self._own.append(_UserOptimizer(optimizer, self._trained))
        return self._own[-1]

    def _check_others(self, params: list[torch.nn.Parameter]) -> None:
        """Refuse parameters that are not the module's."""
        inside = self._seen.keys() | {id(p) for p in self.module.parameters()}
        others = sum(id(p) not in inside for p in params if p.requires_grad)
        if others:
            raise _core.ConfigError(
                f"the optimizer has {others} parameters that are not of this model, allowed: an "
                "optimizer for parameters of one model"
            )

    def _check_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep sums that are not finite from the parameters, unless a GradScaler has seen them."""
        if not self._nonfinite or getattr(optimizer, "found_inf", None) is not None:
            return
        grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
        if all(bool(grad.isfinite().all()) for grad in grads if grad is not None):
            return
        if not self._skips:
            raise _core.NonFiniteError(
                f"{self._nonfinite}; try a smaller learning rate or clipping, or leave such steps "
                'out with options={"nonfinite": "skip"}'
            )
        for p in self._trained.tensors:
            p.grad = None
        self._nonfinite = ""
        self._num_left_out += 1

    # The steps of the engine.

    def _begin_with(self, session: Session, module: torch.nn.Module) -> None:
        before = self._before
        if before is None:
            super()._begin_with(session, module)
            return
        compare_modules(session, module)
        # The ranks' models may differ by now. New layers begin with rank 0's values.
        share_tensors(session, [p for p in module.parameters() if id(p) not in before.seen])

    def _begin_backward(self) -> None:
        if self._sums_gradients:
            self.set_accumulate_grad(not self.turn.take_backward())
        super()._begin_backward()

    def _end_step(self) -> None:
        super()._end_step()
        if self._sums_gradients:
            self._nonfinite = self._engine.take_nonfinite()

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
        # Nobody sees the parameters where ranks exchange gradients.
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


class _NoUpdate(torch.optim.Optimizer):
    """Leaves the parameters as they are, and the gradients to the user's optimizer."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.0})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        return None


class _UserOptimizer(WrappedOptimizer):
    """An optimizer of the user's, which runs in Python, so that its states are where they were."""

    def __init__(self, optimizer: torch.optim.Optimizer, trained: EngineParameters) -> None:
        super().__init__(optimizer, trained)
        if self.state is not None:
            self.state.release()
        self.rule = self.state = None
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


def _without_parameters(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return an optimizer of the same class whose step() changes nothing of this one's."""
    other = object.__new__(type(optimizer))
    other.__dict__.update(optimizer.__dict__)
    other.state = collections.defaultdict(dict)
    other.param_groups = [
        {**group, "params": [torch.nn.Parameter(p.new_empty(0)) for p in group["params"][:1]]}
        for group in optimizer.param_groups
    ]
    return other


# By the id of each parameter. A trainer keeps its parameters, so that no id is used again.
_trainers: weakref.WeakValueDictionary[int, _Trainer] = weakref.WeakValueDictionary()
_watches = False


def _watch_optimizers(trainer: _Trainer) -> None:
    global _watches
    for p in trainer.parameters_trained:
        _trainers[id(p)] = trainer
    if not _watches:
        register_optimizer_step_pre_hook(_before_step)
        register_optimizer_step_post_hook(_after_step)
        _share_overflows()
        _watches = True


def _trainer_of(optimizer: torch.optim.Optimizer) -> _Trainer | None:
    """Return the trainer whose parameters an optimizer has; None: it is told nothing of it."""
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


def _device_of(
    module: torch.nn.Module,
    device_ids: Sequence[int | torch.device] | None,
    output_device: int | torch.device | None,
) -> torch.device | None:
    """Return the GPU to which inputs are moved; None: to none."""
    own = next((p.device for p in module.parameters()), torch.device("cpu"))
    asked = [*(device_ids or []), *([] if output_device is None else [output_device])]
    for device in asked:
        found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if found.type == "cuda" and found.index is None and own.type == "cuda":
            found = torch.device("cuda", torch.cuda.current_device())
        if found != own:
            raise _core.ConfigError(
                f"device_ids is {device_ids}, output_device is {output_device}, and the module is "
                f"on {own}, allowed: None, or the one GPU that the module is on"
            )
    return own if device_ids else None


def _refuse(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if name not in _REFUSED | _IGNORED:
            raise TypeError(f"DistributedDataParallel has no argument {name!r}")
        if name in _REFUSED and value is not None and value != []:
            raise _core.ConfigError(
                f"{name} is {value!r}, allowed: None; all ranks of the session train together"
            )
