"""decent-dp's wrapper, on gossamer's engine."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler

from ... import _core, data_parallel, distributed
from .sums import PeerSums
from .topo import Topology, TopologyReg, as_launched

__all__ = ["LR_SCHEDULER_FN_TYPE", "OPTIM_FN_TYPE", "DecentralizedDataParallel"]

OPTIM_FN_TYPE = Callable[[list[tuple[str, torch.Tensor]]], torch.optim.Optimizer]
LR_SCHEDULER_FN_TYPE = Callable[[torch.optim.Optimizer], LRScheduler]


class DecentralizedDataParallel(torch.nn.Module):
    """Trains a module by gossip, with the interface of decent-dp's class of this name.

    ``loss.backward()`` makes the whole step, the first one included, which decent-dp makes in the
    second forward pass. One optimizer has all parameters, where decent-dp makes one for each
    bucket. The session begins by itself, if there is none yet.

    Parameters
    ----------
    model
        The module to train; it moves to the GPU, if there is one and the rank is a process. All
        ranks get rank 0's parameters and buffers.
    optim_fn
        Makes an optimizer from a list of pairs (name, parameter).
    lr_scheduler_fn
        Makes a schedule from the optimizer, which steps after every step.
    topology
        A name in TopologyReg.registry.
    scaler
        A torch.amp.GradScaler, for ``scaler.scale(loss).backward()``. The wrapper calls its
        update(). All ranks leave out a step in which any has a gradient that is not finite.
    grad_clip_norm
        Largest L2 norm of the gradients of a bucket; 0: no limit.
    param_as_bucket_view
        Ignored: parameters always lie in the engine's buckets.
    sync_buffer_in_global_avg
        Whether global_avg() averages the buffers of floating point, too.
    bucket_size_in_mb
        Size in MiB at which a bucket closes.
    _local_world_size
        The number of ranks of a node; None: the environment's LOCAL_WORLD_SIZE, or else the ranks
        that share a host.

    Raises
    ------
    ConfigError
        As gossamer.DecentralizedDataParallel does.
    KeyError
        For a topology that is not registered.
    """

    _trainer: _Trainer

    def __init__(
        self,
        model: torch.nn.Module,
        optim_fn: OPTIM_FN_TYPE,
        lr_scheduler_fn: LR_SCHEDULER_FN_TYPE | None = None,
        topology: str = "complete",
        scaler: GradScaler | None = None,
        grad_clip_norm: float = 0.0,
        param_as_bucket_view: bool = True,
        sync_buffer_in_global_avg: bool = False,
        bucket_size_in_mb: float = 25,
        _local_world_size: int | None = None,
    ) -> None:
        super().__init__()
        distributed.initialize_dist()
        if topology not in TopologyReg.registry:
            names = ", ".join(TopologyReg.registry)
            raise KeyError(f"topology {topology!r} is not registered, allowed: {names}")
        if _local_world_size is None:
            node_size = distributed.current_session().node_size
            _local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", node_size))
        options: dict[str, Any] = {"adaptive_factor": 1.0, "device": {"share": True}}
        if grad_clip_norm > 0:
            options |= {"grad_clip": "per_bucket", "grad_clip_norm": grad_clip_norm}
        self._model = model = _moved(model)
        self._averages_buffers = sync_buffer_in_global_avg
        self._has_begun_step = False
        self._is_second_forward = False
        made = TopologyReg.registry[topology](_local_world_size)
        # No child, because the names of parameters are those of the original.
        self.__dict__["_trainer"] = _Trainer(
            model,
            optim_fn,
            as_launched(made),
            with_names=True,
            lr_scheduler_fn=lr_scheduler_fn,
            scaler=scaler,
            bucket_size_in_mb=bucket_size_in_mb,
            options=options,
        )
        self._trainer.watch_sums(made)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        self._is_second_forward = self._has_begun_step
        if self._model.training:
            if torch.is_grad_enabled():
                self._trainer.go_on_from_average()
            if not self._trainer.accumulates:
                self._has_begun_step = True
        return self._trainer(*args, **kwargs)

    def set_accumulate_grad(self, enable: bool = True) -> None:
        """While on, backward() only adds to the gradients; the next one then makes the step."""
        self._trainer.set_accumulate_grad(enable)

    def global_avg(self, will_revert: bool = True, return_d2c: bool = False) -> float | None:
        """Make the mean of all ranks' models this rank's model. Collective.

        A step that comes before revert_global_avg() goes on from the mean, and mixes nothing.

        Parameters
        ----------
        will_revert
            Whether revert_global_avg() will follow, which gives buffers back, too.
        return_d2c
            Whether to return the distance of this rank's model from the mean, an L2 norm.
        """
        distance = self._trainer.begin_average(
            will_revert, will_revert or return_d2c, self._averages_buffers
        )
        return distance if return_d2c else None

    def revert_global_avg(self) -> None:
        """Give the model back that this rank had before global_avg(). Collective.

        Raises
        ------
        RuntimeError
            If there has been no global_avg() that may be reverted.
        """
        self._trainer.revert_average()

    def get_lr(self) -> float:
        """Return the rate of the first group; 0.0 before the second forward pass.

        Raises
        ------
        AssertionError
            Without a schedule.
        """
        if not self._is_second_forward:
            return 0.0
        schedule = self._trainer.lr_scheduler
        assert schedule is not None, "get_lr() without lr_scheduler_fn"
        return float(schedule.get_last_lr()[0])

    def set_adaptive_factor(self, factor: float) -> None:
        """Go only a part of the way to the mix: the weight w becomes 1 - factor (1 - w).

        The factor is the same on all ranks. It counts for exchanges that start from now on, so the
        next step still mixes with the old one.

        Raises
        ------
        ConfigError
            For a factor that is no number from 0 to 1, and for 0 with an optimizer that has
            pre_average_hook().
        """
        self._trainer.set_adaptive_factor(factor)


def _moved(model: torch.nn.Module) -> torch.nn.Module:
    """Move a module to the current GPU, if there is one and this rank is no thread."""
    is_process = threading.current_thread() is threading.main_thread()
    is_moved = is_process and torch.cuda.is_available() and _core.num_gpus() > 0
    return model.cuda() if is_moved else model


class _Trainer(data_parallel.DecentralizedDataParallel):
    """Updates the scaler after every step, and keeps averages that end later."""

    def __init__(self, *arguments: Any, scaler: GradScaler | None, **options: Any) -> None:
        super().__init__(*arguments, scaler=scaler, **options)
        self._scaler = scaler
        self._factor: float | None = None
        self._average: contextlib.AbstractContextManager[float] | None = None
        self._backup: list[torch.Tensor] = []
        self._sums: PeerSums | None = None

    def watch_sums(self, topology: Topology) -> None:
        """Call the optimizer's pre_average_hook(), if it has one."""
        if hasattr(self.optimizer, "pre_average_hook"):
            self._sums = PeerSums(self.optimizer, topology)
            self._optimizer.before_update = self._sums.before_update

    def _engine_is_new(self) -> None:
        super()._engine_is_new()
        if self._sums is not None:
            raise _core.ConfigError(
                "parameters that are trained only now, and an optimizer with pre_average_hook(), "
                "allowed: to wrap the module again"
            )
        if self._factor is not None:
            self._engine.set_adaptive_factor(self._factor)

    @property
    def accumulates(self) -> bool:
        return self._passes.accumulate

    def set_adaptive_factor(self, factor: float) -> None:
        if self._sums is not None and factor == 0:
            raise _core.ConfigError(
                "adaptive_factor: 0, allowed: above 0, because the optimizer's pre_average_hook() "
                "asks for sums that are then not mixed in"
            )
        self._factor = factor
        self._engine.set_adaptive_factor(factor)
        if self._sums is not None:
            self._sums.factor = factor

    def begin_average(self, will_revert: bool, has_backup: bool, buffers: bool) -> float:
        """Take the mean; return the distance from it."""
        self.go_on_from_average()
        if has_backup:
            self._backup = self._values()
        if self._sums is not None and not will_revert:
            self._sums.forget()
        average = self.global_average(keep=not will_revert, buffers=buffers)
        if will_revert:
            self._average = average
            return average.__enter__()
        with average as distance:
            return distance

    def revert_average(self) -> None:
        """Return from the mean, also after steps that went on from it."""
        if not self._backup:
            raise RuntimeError("revert_global_avg() without a global_avg() that may be reverted")
        if self._average is None:
            self._write(self._backup)
        self._end_average()

    def go_on_from_average(self) -> None:
        """Leave the scope of an average that has not been reverted, and keep the mean."""
        if self._average is None:
            return
        mean = self._values()
        self._end_average()
        self._write(mean)

    def close(self, *, failed: bool) -> None:
        if failed:
            self._end_average()
        else:
            self.go_on_from_average()
        super().close(failed=failed)

    def _end_average(self) -> None:
        average, self._average = self._average, None
        if average is not None:
            average.__exit__(None, None, None)

    def _values(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self._trained.tensors]

    def _forget_arrived(self) -> None:
        super()._forget_arrived()
        if self._sums is not None:
            self._sums.forget()

    def _write(self, values: list[torch.Tensor]) -> None:
        with self.write_parameters(), torch.no_grad():
            for p, value in zip(self._trained.tensors, values, strict=True):
                p.copy_(value)

    def _end_step(self) -> None:
        super()._end_step()
        if self._sums is not None:
            self._sums.end_step()
        if self._scaler is not None:
            self._scaler.update()
