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

import contextlib
import itertools
import json
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._pytree import tree_map_only

from .. import _core
from ..autograd import increment_versions
from ..checks import share_tensors
from ..data_parallel import DecentralizedDataParallel
from ..distributed import Session, initialize_dist
from ..groups import WrappedOptimizer, replace_step

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
    NonFiniteError.

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
        # No child, because the names of parameters are those of the original.
        self.__dict__["_trainer"] = _Trainer(
            module,
            self._sums_gradients,
            topology,
            algorithm=algorithm,
            codec=codec,
            bucket_size_in_mb=25 if bucket_cap_mb is None else bucket_cap_mb,
            options=options,
            session=session,
        )
        if not self._sums_gradients:
            _watch_optimizers(self._trainer)

    @property
    def session(self) -> Session:
        """The session in which the wrapper trains."""
        return self._trainer.session

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module, with rank 0's buffers where broadcast_buffers says so."""
        if self._broadcasts_buffers and torch.is_grad_enabled() and not self._trainer.accumulates:
            share_tensors(self.session, self.module.buffers())
        if self._device is not None:
            args, kwargs = tree_map_only(torch.Tensor, self._move, (args, kwargs))
        return self.module(*args, **kwargs)

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, non_blocking=True)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only add to the rank's own gradients inside the scope."""
        if not self._sums_gradients:
            yield
            return
        with self._trainer.no_sync():
            yield

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
                "the same number of steps on all ranks"
            )
        return contextlib.nullcontext()

    def global_average(
        self, keep: bool = False, buffers: bool = True
    ) -> contextlib.AbstractContextManager[float]:
        """Be the mean of all ranks' models, as in DecentralizedDataParallel. Collective."""
        return self._trainer.global_average(keep, buffers)

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


class _Trainer(DecentralizedDataParallel):
    """Leaves gradients to the user's optimizer, which it gets to know when that steps first."""

    _updates_in_backward = False

    def __init__(
        self,
        module: torch.nn.Module,
        sums_gradients: bool,
        topology: str | Mapping[str, Any] | None,
        **options: Any,
    ) -> None:
        super().__init__(module, _NoUpdate, topology, **options)
        self._sums_gradients = sums_gradients
        self._order: list[int] = []
        # Where gradients are not summed, the optimizer's step() calls finish_step().
        self.set_accumulate_grad(not sums_gradients)

    @property
    def accumulates(self) -> bool:
        return self._accumulating

    @property
    def is_average(self) -> bool:
        return self._scope == "global_average()"

    @property
    def parameters_trained(self) -> list[torch.nn.Parameter]:
        return self._trained.tensors

    def begin_with(self, optimizer: torch.optim.Optimizer) -> None:
        """Send what the first step of an optimizer has left; the engine calls its next steps."""
        own = _UserOptimizer(optimizer, self._trained.tensors)
        self.finish_step()
        own.step_by(self.finish_step)
        self._optimizer = own

    def _arrived(self, i: int) -> None:
        self._order.append(i)

    def _start(self) -> None:
        # Ranks may use different parameters. The order of rank 0 counts.
        orders = map(json.loads, self._session.gather_distinct(json.dumps(self._order)))
        rest = reversed(range(len(self._trained.tensors)))
        for i in dict.fromkeys(itertools.chain(*orders, rest)):
            self._engine.arrived(i)
        # The engine copies the values from where they were when the module was wrapped.
        self._trained.take_back()
        super()._start()

    def _adopt(self) -> None:
        # Nobody sees the parameters where ranks exchange gradients.
        if self._sums_gradients:
            self._trained.check_places()
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
    """The user's optimizer, which runs in Python, so that its states are where they were."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter]
    ) -> None:
        super().__init__(optimizer, parameters)
        self.rule = None

    def step_by(self, make_step: Callable[[], None]) -> None:
        """Have the optimizer's step() call `make_step`."""

        def step(optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            make_step()
            return loss

        replace_step(self.optimizer, step)

    def _replace_habits(self) -> None:
        """Leave zero_grad() as it is."""


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
        _watches = True


def _trainer_of(optimizer: torch.optim.Optimizer) -> _Trainer | None:
    """Return the trainer whose parameters an optimizer has; None: it is told nothing of it."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            trainer = _trainers.get(id(p))
            if trainer is not None:
                return None if trainer.optimizer is optimizer else trainer
    return None


def _before_step(optimizer: torch.optim.Optimizer, *args: Any) -> None:
    trainer = _trainer_of(optimizer)
    if trainer is None:
        return
    if not isinstance(trainer.optimizer, _NoUpdate):
        raise _core.ConfigError(
            f"{type(optimizer).__name__} steps parameters of a model that "
            f"{type(trainer.optimizer).__name__} trains, allowed: one optimizer for a model"
        )
    trained = {id(p) for p in trainer.parameters_trained}
    updated = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    num_own = sum(id(p) in trained for p in updated)
    if num_own < len(trained) or num_own < len(updated):
        raise _core.ConfigError(
            f"the optimizer has {num_own} of the {len(trained)} parameters of a model, and "
            f"{len(updated) - num_own} others, allowed: those of one model, all of them"
        )


def _after_step(optimizer: torch.optim.Optimizer, *args: Any) -> None:
    trainer = _trainer_of(optimizer)
    if trainer is not None:
        trainer.begin_with(optimizer)


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
