"""An Accelerator of Hugging Face's accelerate whose models gossip.

torchrun, mpirun or srun starts the processes, and the loop stays as it is::

    accelerator = GossamerAccelerator(gossamer={"algorithm": "gossip", "topology": "ring"})
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        accelerator.backward(loss_fn(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    with model.global_average():
        evaluate(model)
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from accelerate import Accelerator

from .._core import ConfigError
from ..compat.ddp import DistributedDataParallel
from ..distributed import current_session, initialize_dist
from .mean import refuse_asynchronous, refuse_survival
from .meeting import reachable_place

__all__ = ["GossamerAccelerator", "meet_accelerate"]


def meet_accelerate() -> None:
    """Tell Accelerate of the session's processes. Collective, before TrainingArguments are made."""
    rank, size = initialize_dist()
    refuse_survival("Accelerate", "deals data and gathers numbers")
    if size == 1:
        return
    session = current_session()
    host, port = reachable_place(session)
    told = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": session.local_rank}
    told |= {"LOCAL_WORLD_SIZE": session.local_world_size}
    os.environ |= {name: str(value) for name, value in told.items()}
    os.environ |= {"MASTER_ADDR": host, "MASTER_PORT": str(port)}
    # Only rank 0 serves a store there.
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"


class GossamerAccelerator(Accelerator):
    """An Accelerator that prepares models with compat.ddp.DistributedDataParallel.

    Mixed precision, compiling, accumulation, and spreading data and metrics are Accelerate's own.

    Parameters
    ----------
    *args, **kwargs
        Arguments of Accelerator.
    gossamer
        Options of compat.ddp.DistributedDataParallel, as algorithm, topology, codec.

    Raises
    ------
    ConfigError
        If Accelerate knows another number of processes than the session has, and for algorithms
        whose ranks make different numbers of steps.
    """

    _gossamer: Mapping[str, Any]
    _models: list[torch.nn.Module]
    of_present: Callable[[Any], Any]
    """Returns the tensors of the ranks that have a batch; None: all have one."""

    def __init__(
        self, *args: Any, gossamer: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if not torch.distributed.is_initialized():
            meet_accelerate()
        super().__init__(*args, **kwargs)
        self._take(gossamer)

    @classmethod
    def adopt(cls, accelerator: Accelerator, gossamer: Mapping[str, Any] | None) -> None:
        """Make an Accelerator that a library has made one of this class."""
        accelerator.__class__ = cls
        accelerator._take(gossamer)

    def _take(self, gossamer: Mapping[str, Any] | None) -> None:
        self._gossamer = dict(gossamer or {})
        self.of_present = _nobody
        refuse_asynchronous("Accelerate", self._gossamer)
        _, size = initialize_dist()
        refuse_survival("Accelerate", "deals data and gathers numbers")
        if self.num_processes != size:
            raise ConfigError(
                f"Accelerate knows {self.num_processes} processes, and gossamer {size}, allowed: "
                "the same number; call meet_accelerate() before TrainingArguments()"
            )

    def prepare_model(
        self,
        model: torch.nn.Module,
        device_placement: bool | None = None,
        evaluation_mode: bool = False,
    ) -> torch.nn.Module:
        """Apply what Accelerate does to a model, and wrap it if it is to be trained."""
        if isinstance(model, DistributedDataParallel):
            return model
        is_trained = not evaluation_mode and any(p.requires_grad for p in model.parameters())
        known = list(self._models)
        prepared: torch.nn.Module = super().prepare_model(
            model, device_placement, evaluation_mode=True
        )
        if is_trained:
            prepared = DistributedDataParallel(prepared, **self._gossamer)
            self._models = [*known, prepared]
        return prepared

    @contextlib.contextmanager
    def join_uneven_inputs(
        self, joinables: list[Any], even_batches: bool | None = None
    ) -> Iterator[None]:
        """Let the ranks have different numbers of batches inside the scope, on processors too.

        Parameters
        ----------
        joinables
            Models that prepare() has wrapped.
        even_batches
            As there: whether loaders of map-style data repeat samples. None: as they are.
        """
        samplers: list[Any] = [getattr(one, "batch_sampler", None) for one in self._dataloaders]
        changed = [s for s in samplers if hasattr(s, "even_batches") and even_batches is not None]
        before = [sampler.even_batches for sampler in changed]
        for sampler in changed:
            sampler.even_batches = even_batches
        enable = not (self.even_batches if even_batches is None else even_batches)
        try:
            with contextlib.ExitStack() as scope:
                for model in joinables:
                    scope.enter_context(model.join(enable=enable))
                yield
        finally:
            for sampler, value in zip(changed, before, strict=True):
                sampler.even_batches = value

    def gather(self, tensor: Any) -> Any:
        """Return the tensors of all ranks in one; in an epoch of uneven data, of those present."""
        found = self.of_present(tensor)
        return super().gather(tensor) if found is None else found

    def unwrap_model(self, model: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        """Return the model inside of all wrappers."""
        while isinstance(model, DistributedDataParallel):
            model = model.module
        found: torch.nn.Module = super().unwrap_model(model, *args, **kwargs)
        return found


def _nobody(tensor: Any) -> None:
    """Return nothing: all ranks have a batch."""
