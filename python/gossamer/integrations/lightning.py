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
import os
import pickle
from typing import Any

import torch
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch.accelerators import CUDAAccelerator
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from .._core import CommError, ConfigError
from ..compat.ddp import DistributedDataParallel
from ..devices import on_host
from ..distributed import current_session, initialize_dist
from .mean import mean_of, refuse_asynchronous
from .meeting import begin_process_group

__all__ = ["GossamerStrategy"]


class GossamerStrategy(ParallelStrategy):
    """Trains a LightningModule with compat.ddp.DistributedDataParallel.

    With gossip the ranks' models differ while they train. Validation and checkpoints take their
    mean, and after fit() every rank has the mean; checkpoints have the optimizer of rank 0.
    PyTorch's process group has the same ranks, so that torchmetrics and SyncBatchNorm count over
    all of them.

    Parameters
    ----------
    **options
        Those of compat.ddp.DistributedDataParallel, as algorithm, topology, codec.

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
        self.local_rank = self._session.local_rank
        self._scope = contextlib.ExitStack()
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
        """Refuse data that would have the ranks make different numbers of steps."""
        num = str(self.lightning_module.trainer.num_training_batches)
        nums = self._session.all_gather(num)
        if len(set(nums)) > 1:
            raise ConfigError(
                f"the ranks have {', '.join(nums)} batches of training data in an epoch, allowed: "
                "the same number on all ranks; use_distributed_sampler=True sees to it"
            )

    def on_validation_start(self) -> None:
        """Become the mean."""
        self._scope.enter_context(mean_of(self.model))

    def on_validation_end(self) -> None:
        """Become the rank's own model again."""
        self._scope.close()

    def on_train_end(self) -> None:
        """Become the mean for good, and free the engine."""
        try:
            with mean_of(self.model, keep=True):
                pass
        except CommError as error:
            # The data of an iterable may end earlier on one rank than on another.
            error.args = (
                f"{error}; this rank's training is over: if the other is still training, give all "
                "ranks the same number of batches",
            )
            raise
        self.model.finish()
        self.model = self.lightning_module

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the mean's values."""
        with mean_of(self.model):
            return {name: x.clone() for name, x in self.lightning_module.state_dict().items()}

    def barrier(self, name: str | None = None) -> None:
        """Wait for all ranks."""
        self._session.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return the object of rank `src`."""
        return self._gather(obj if self.global_rank == src else None)[src]

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> Any:
        """Return the tensors of all ranks in one."""
        if sync_grads:
            raise ConfigError("sync_grads is True, allowed: False; no gradient goes through it")
        if self.world_size == 1:
            return tensor
        return torch.stack(self._gather(on_host(tensor))).to(tensor.device)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return the sum or the mean of a tensor over all ranks."""
        name = str(reduce_op).split(".")[-1].lower()
        if name not in ("sum", "mean", "avg"):
            raise ConfigError(f"reduce_op is {reduce_op}, allowed: sum, mean, avg")
        total = torch.tensor(self._session.sum(tensor.double().flatten().tolist()))
        total = total.reshape(tensor.shape).to(tensor.device)
        return total.to(tensor.dtype) if name == "sum" else (total / self.world_size).float()

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


def _read(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)
