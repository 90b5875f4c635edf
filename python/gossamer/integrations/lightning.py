"""A strategy for Lightning's Trainer.

torchrun, mpirun or srun starts the processes::

    strategy = GossamerStrategy(algorithm="gossip", topology="base-k")
    lightning.Trainer(accelerator="cpu", devices=1, strategy=strategy).fit(module, loader)

With ``accelerator="gpu"`` each process of a host takes a GPU of its own.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import pickle
from typing import Any

import torch
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch import Callback
from lightning.pytorch.accelerators import CUDAAccelerator
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from .._core import ConfigError
from ..compat.ddp import DistributedDataParallel
from ..compat.joining import Joining
from ..devices import on_host
from ..distributed import current_session, initialize_dist
from .mean import mean_of, refuse_asynchronous, refuse_survival
from .meeting import begin_process_group

__all__ = ["GossamerStrategy"]


class GossamerStrategy(ParallelStrategy):
    """Trains a LightningModule with compat.ddp.DistributedDataParallel.

    With gossip the ranks' models differ while they train. Validation and checkpoints take their
    mean, and after fit() every rank has the mean; checkpoints have the optimizer of rank 0.
    PyTorch's process group has the same ranks, so that torchmetrics and SyncBatchNorm count over
    all of them.

    The ranks may have different numbers of batches in an epoch, as of an IterableDataset:

    1. A rank that has none left makes the others' steps without a gradient, as in the drop-in's
       join(), until all have ended the epoch. Its global_step and its schedules go on with them.
    2. Values that all ranks log together are then of the ranks that have a batch.
    3. Other collective calls in the middle of such an epoch, as for a validation or a checkpoint
       there, are refused on all ranks when a rank has no batch left.

    Parameters
    ----------
    **options
        Options of compat.ddp.DistributedDataParallel, as algorithm, topology, codec.

    Raises
    ------
    ConfigError
        For algorithms whose ranks make different numbers of steps.
    """

    model: Any
    is_distributed = True
    # Values in place of the base's properties, which ask the launcher's variables.
    global_rank, local_rank, world_size = 0, 0, 1

    def __init__(self, **options: Any) -> None:
        refuse_asynchronous("Lightning", options)
        # SLURM's own environment would want a device for every task.
        super().__init__(cluster_environment=LightningEnvironment())
        self._options = options
        self.global_rank, self.world_size = initialize_dist()
        self._session = current_session()
        refuse_survival("Lightning", "deals data and has ranks meet before every batch")
        self.local_rank = self._session.local_rank
        self._scope = contextlib.ExitStack()
        self._epochs: _UnevenEpochs | None = None
        rank_zero_only.rank = self.global_rank

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Which part of the data is this rank's."""
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    @property
    def root_device(self) -> torch.device:
        """The processor, or the GPU of this process."""
        if not isinstance(self.accelerator, CUDAAccelerator):
            return torch.device("cpu")
        return torch.device("cuda", self.local_rank % torch.cuda.device_count())

    def setup_environment(self) -> None:
        """Begin PyTorch's process group, for what asks it for other ranks."""
        super().setup_environment()
        begin_process_group()

    def model_to_device(self) -> None:
        """Move the model to its device."""
        self.model.to(self.root_device)

    def _setup_model(self, model: torch.nn.Module) -> torch.nn.Module:
        if self.lightning_module.trainer.state.fn != TrainerFn.FITTING:
            return model
        if self._layer_sync is not None:
            model = self._layer_sync.apply(model)
        return DistributedDataParallel(model, **self._options)

    def block_backward_sync(self) -> contextlib.AbstractContextManager[None]:
        """Accumulate gradients inside the scope."""
        return self.model.no_sync()  # type: ignore[no-any-return]

    def on_train_start(self) -> None:
        """Let the ranks have different numbers of batches, where their data may have them."""
        trainer = self.lightning_module.trainer
        nums = self._session.all_gather(str(trainer.num_training_batches))
        if self.world_size > 1 and (len(set(nums)) > 1 or "inf" in nums):
            self._epochs = _UnevenEpochs(trainer, self.model.begin_join())

    def on_validation_start(self) -> None:
        """Become the mean."""
        if self._epochs is not None:
            self._epochs.before_validation()
        self._scope.enter_context(mean_of(self.model))

    def on_validation_end(self) -> None:
        """Become the rank's own model again."""
        self._scope.close()

    def on_train_end(self) -> None:
        """Become the mean for good, and free the engine."""
        if self._epochs is not None:
            self._epochs.end()
            self._epochs = None
        with mean_of(self.model, keep=True):
            pass
        self.model.finish()
        self.model = self.lightning_module

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the mean's values."""
        self._refuse_absent("lightning_module_state_dict(), as for a checkpoint,")
        with mean_of(self.model):
            return {name: x.clone() for name, x in self.lightning_module.state_dict().items()}

    def barrier(self, name: str | None = None) -> None:
        """Wait for all ranks."""
        self._refuse_absent("barrier()")
        self._session.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return the object of rank `src`."""
        self._refuse_absent("broadcast()")
        return self._gather(obj if self.global_rank == src else None)[src]

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> Any:
        """Return the tensors of all ranks in one."""
        if sync_grads:
            raise ConfigError("sync_grads is True, allowed: False; no gradient goes through it")
        if self.world_size == 1:
            return tensor
        self._refuse_absent("all_gather()")
        return torch.stack(self._gather(on_host(tensor))).to(tensor.device)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return the sum or the mean of a tensor over all ranks."""
        name = str(reduce_op).split(".")[-1].lower()
        if name not in ("sum", "mean", "avg"):
            raise ConfigError(f"reduce_op is {reduce_op}, allowed: sum, mean, avg")
        own, size = tensor.double().flatten().tolist(), self.world_size
        if self._epochs is not None and self._epochs.is_under_way:
            found = [json.loads(text) for text in self._epochs.joining.texts(json.dumps(own))]
            total, size = torch.tensor(found, dtype=torch.float64).sum(0), len(found)
        else:
            total = torch.tensor(self._session.sum(own), dtype=torch.float64)
        total = total.reshape(tensor.shape).to(tensor.device)
        return total.to(tensor.dtype) if name == "sum" else (total / size).float()

    def _refuse_absent(self, call: str) -> None:
        """Refuse a collective call where a rank has no batch left in this epoch."""
        if self._epochs is not None and self._epochs.is_under_way:
            self._epochs.joining.refuse_absent(call)

    def _gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks. None of them can run code here."""
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        memory = io.BytesIO()
        torch.save(value, memory)
        try:
            _read(memory.getvalue())
        except pickle.UnpicklingError as error:
            raise ConfigError(
                f"a rank sends {type(value).__name__} to the others, allowed: None, numbers, "
                "texts, paths, tensors, and lists, tuples and dicts of them "
                f"({str(error).splitlines()[0]})"
            ) from None
        text = base64.b64encode(memory.getvalue()).decode()
        return [_read(base64.b64decode(found)) for found in self._session.all_gather(text)]


class _UnevenEpochs(Callback):
    """Has ranks that end an epoch earlier make the steps of the others.

    Parameters
    ----------
    trainer
        The trainer, which begins its first epoch.
    joining
        What ranks tell each other.
    """

    def __init__(self, trainer: Any, joining: Joining) -> None:
        self.joining = joining
        self.is_under_way = False
        """Whether a rank of this epoch may have no batch left."""
        self._trainer = trainer
        self._loop = trainer.fit_loop.epoch_loop
        # Lightning's own callbacks come later, and may make collective calls.
        trainer.callbacks.insert(0, self)
        # Before every batch, Lightning has all ranks of PyTorch's process group meet, to end them
        # together after a SIGTERM. Here a rank that ends ends the others by itself.
        self._loop._broadcast_sigterm_tensor = lambda: None

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        """Begin an epoch."""
        self.is_under_way = True

    def before_validation(self) -> None:
        """Wait for the ranks that have batches left, where the epoch is over here."""
        if self._loop.batch_progress.is_last_batch:
            self._wait("a validation")
        elif self.is_under_way:
            self.joining.refuse_absent("a validation")

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Wait for the ranks that have batches left."""
        self._wait("the end of an epoch")

    def _wait(self, place: str) -> None:
        if not self.is_under_way:
            return
        self.joining.wait_for_others(self._after_step)
        self.is_under_way = False
        self._trainer.strategy._session.agree("where they are", place)

    def _after_step(self) -> None:
        """Count a step of the others."""
        loop = self._loop
        if self._trainer.lightning_module.automatic_optimization:
            step = loop.automatic_optimization.optim_progress.optimizer.step
            step.increment_ready()
            step.increment_completed()
        loop.update_lr_schedulers("step", update_plateau_schedulers=False)

    def end(self) -> None:
        """Leave the trainer as it was."""
        self.joining.end()
        self._trainer.callbacks.remove(self)
        del self._loop._broadcast_sigterm_tensor


def _read(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)
