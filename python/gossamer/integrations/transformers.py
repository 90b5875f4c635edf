"""A Trainer of Hugging Face's transformers whose ranks gossip.

torchrun, mpirun or srun starts the processes. Accelerate spreads data and metrics over them, by
gloo on processors and by NCCL on GPUs::

    meet_accelerate()
    arguments = transformers.TrainingArguments("out", use_cpu=True)  # or without, on GPUs
    options = {"algorithm": "gossip", "topology": "base-k"}
    GossamerTrainer(model, arguments, train_dataset=data, gossamer=options).train()
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

import torch
from transformers import Trainer

from .._core import ConfigError
from ..compat.ddp import DistributedDataParallel
from ..distributed import current_session, initialize_dist
from .mean import mean_of

__all__ = ["GossamerTrainer", "meet_accelerate"]


def meet_accelerate() -> None:
    """Tell Accelerate of the session's processes. Collective, before TrainingArguments are made."""
    rank, size = initialize_dist()
    session = current_session()
    with socket.socket() as free:
        free.bind(("", 0))
        host, port = session.all_gather(f"{socket.gethostname()} {free.getsockname()[1]}")[
            0
        ].split()
    if size > 1:
        told = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": session.local_rank}
        told |= {"LOCAL_WORLD_SIZE": session.local_world_size}
        os.environ |= {name: str(value) for name, value in told.items()}
        os.environ |= {"MASTER_ADDR": host, "MASTER_PORT": port}
        # Nobody but rank 0 serves a store there.
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"


class GossamerTrainer(Trainer):
    """A Trainer that trains with compat.ddp.DistributedDataParallel in place of PyTorch's.

    With gossip the ranks' models differ while they train. Evaluation and checkpoints take their
    mean, and after train() every rank has the mean; checkpoints have the optimizer of rank 0.

    Parameters
    ----------
    *args, **kwargs
        Those of Trainer.
    gossamer
        Options of compat.ddp.DistributedDataParallel, as algorithm, topology, codec.

    Raises
    ------
    ConfigError
        If Accelerate knows another number of processes than the session has.
    """

    model_wrapped: Any

    def __init__(
        self, *args: Any, gossamer: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._options = dict(gossamer or {})
        _, size = initialize_dist()
        if self.args.world_size != size:
            raise ConfigError(
                f"Accelerate knows {self.args.world_size} processes, and gossamer {size}, allowed: "
                "the same number; call meet_accelerate() before TrainingArguments()"
            )

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train, and become the mean of all ranks' models for good."""
        result = super().train(*args, **kwargs)
        with mean_of(self.model_wrapped, keep=True):
            pass
        self.model_wrapped.finish()
        self.model_wrapped = self.model
        return result

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate the mean of all ranks' models."""
        with mean_of(self.model_wrapped):
            return super().evaluate(*args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Let the mean of all ranks' models predict."""
        with mean_of(self.model_wrapped):
            return super().predict(*args, **kwargs)

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Save the mean of all ranks' models. Collective."""
        with mean_of(self.model_wrapped):
            super().save_model(*args, **kwargs)

    def _wrap_model(
        self, model: torch.nn.Module, training: bool = True, dataloader: Any = None
    ) -> torch.nn.Module:
        # Accelerate would move a bare model out of the engine's memory.
        if isinstance(self.model_wrapped, DistributedDataParallel):
            return self.model_wrapped
        return DistributedDataParallel(model, **self._options) if training else model
