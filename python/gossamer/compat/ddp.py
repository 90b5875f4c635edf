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
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from .. import _core
from ..checks import share_tensors
from ..distributed import Session, current_session, initialize_dist
from .joining import Joining, joined
from .trainer import Before, Trainer

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

    In a session with survive=True the loop goes on when ranks die, and others may join it. A rank
    that joins has the optimizers' states of rank 0 from its own optimizers' first steps on.

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
        As in gossamer.DecentralizedDataParallel.
    recipe
        "allreduce": rate and largest norm were chosen for all-reduce, as those of a loop for
        PyTorch's class are. Where ranks update with gradients of their own, Adam, AdamW and Muon of
        PyTorch then step with the rate times recipe_factor, SGD with its rate. ``p.grad`` is
        divided by the factor until ``step()``, so that ``clip_grad_norm_()`` clips as much as of
        the mean gradient. "own": rate and gradients stay as they are.
    session
        The session to train in; None: the current one, or that of initialize_dist().
    **others
        The original's other arguments, of which only the defaults are allowed.

    Raises
    ------
    ConfigError
        For arguments that would do something else here, and as DecentralizedDataParallel does.
    """

    _trainer: Trainer

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
        recipe: str = "own",
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
            session = current_session()
        name = algorithm if isinstance(algorithm, str) else algorithm.get("name")
        self.module = module
        self._sums_gradients = name == "allreduce"
        self._broadcasts_buffers = broadcast_buffers and self._sums_gradients
        if session.is_elastic and self._shared_buffers():
            raise _core.ConfigError(
                "broadcast_buffers is True, and ranks that may be lost or join share no buffers "
                "before a forward pass, allowed: broadcast_buffers=False in a session with "
                "survive=True"
            )
        self._take_trainer(
            functools.partial(
                Trainer,
                module=module,
                sums_gradients=self._sums_gradients,
                topology=topology,
                algorithm=algorithm,
                codec=codec,
                recipe=recipe,
                bucket_size_in_mb=25 if bucket_cap_mb is None else bucket_cap_mb,
                options=options,
                session=session,
            )
        )

    def _take_trainer(self, make: Callable[..., Trainer], before: Before | None = None) -> None:
        """Train by a trainer that takes the place of another one, which has finished."""
        trainer = make(before=before)
        # No child, because the names of parameters are those of the original.
        self.__dict__["_trainer"] = trainer
        own = weakref.ref(self)

        # No reference to the trainer, which would live on with this function of its own.
        def renew() -> Trainer:
            wrapper = own()
            assert wrapper is not None
            before = wrapper._trainer
            if before.session.is_elastic:
                raise _core.ConfigError(
                    "parameters that are trained only now, and survive=True, allowed: to call "
                    "finish(), and to wrap the module again"
                )
            if before.joining is not None:
                raise _core.ConfigError(
                    "parameters that are trained only now, inside of join(), where ranks without a "
                    "batch do not know them, allowed: before join() begins"
                )
            before.finish()
            wrapper._take_trainer(make, before.passed_on())
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
        if is_trained and self.training:
            self._trainer.enter()
        if is_trained and self._sums_gradients:
            self._begin_pass()
        elif is_trained:
            self._trainer.watch_later_parameters()
        if is_trained:
            self._trainer.check_kinds()
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
        buffers = self._shared_buffers()
        if buffers and self._trainer.turn.shares_buffers:
            if self._trainer.joining is not None:
                self._trainer.joining.share_buffers()
            else:
                share_tensors(self.session, buffers)

    def _shared_buffers(self) -> list[torch.Tensor]:
        return list(self.module.buffers()) if self._broadcasts_buffers else []

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
        """Let the ranks have different numbers of batches inside the scope. Collective.

        A rank that leaves its loop earlier takes part in the steps of the others, until all have
        left:

        1. With "allreduce" it adds nothing to the gradients, and its parameters stay as they are.
           In the end it gets the parameters, the buffers and the optimizer's state of the last rank
           that had a batch. (PyTorch leaves the optimizer's state behind, and models part later.)
        2. With any other algorithm it mixes in every step, and updates nothing.

        The ranks tell each other before every step who has a batch, in one small message to and
        fro. Schedules that step with each batch stay behind on a rank that leaves earlier.

        Parameters
        ----------
        divide_by_initial_world_size
            Whether "allreduce" divides the gradients by the number of all ranks. False: by the
            number of those that have a batch. Batches that backward_weight() weighs are divided by
            their weights.
        enable
            False: do nothing, because all ranks have equally many batches.
        throw_on_early_termination
            Whether all ranks raise a RuntimeError when the first one has no batch left.

        Raises
        ------
        ConfigError
            In the scope, with a GradScaler, or for parameters that are trained only now.
        """
        if not enable:
            return contextlib.nullcontext()
        return joined(
            lambda: self.begin_join(
                divides_by_all=divide_by_initial_world_size, throws=throw_on_early_termination
            )
        )

    def begin_join(self, **how: bool) -> Joining:
        """Begin what join() does, for a training loop that is no scope; `how`: as in Joining."""
        return Joining(self._trainer, self._shared_buffers(), **how)

    def join_hook(self, **arguments: Any) -> None:
        """Refuse to be a part of torch.distributed.algorithms.Join.

        Raises
        ------
        ConfigError
            Always.
        """
        raise _core.ConfigError(
            "torch.distributed.algorithms.Join with gossamer's DistributedDataParallel, which "
            "has no process group, allowed: with model.join():"
        )

    def backward_weight(self, weight: float) -> None:
        """Weigh this rank's gradient in the next mean, as in DecentralizedDataParallel.

        All ranks call it before the same ``backward()`` that sums gradients. Refused with any other
        algorithm than "allreduce".
        """
        self._trainer.backward_weight(weight)

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
    def num_steps(self) -> int:
        """The steps that this rank has made, as in DecentralizedDataParallel."""
        return self._trainer.num_steps

    def register_state(self, name: str, owner: Any) -> None:
        """Have ranks that join know the state of an object, as in DecentralizedDataParallel."""
        self._trainer.register_state(name, owner)

    @property
    def recipe_factor(self) -> float:
        """The factor on the rate in the next step; 1 with ``recipe="own"``."""
        return self._trainer.recipe_factor

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
