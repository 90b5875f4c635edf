"""A Trainer of Hugging Face's transformers whose ranks gossip.

torchrun, mpirun or srun starts the processes. Accelerate spreads data and metrics over them, by
gloo on processors and by NCCL on GPUs::

    meet_accelerate()
    arguments = transformers.TrainingArguments("out", use_cpu=True)  # or without, on GPUs
    options = {"algorithm": "gossip", "topology": "base-k"}
    GossamerTrainer(model, arguments, train_dataset=data, gossamer=options).train()

Any other kind of Trainer gets a class of its own::

    class GossamerSFTTrainer(GossamerTrainerMixin, trl.SFTTrainer):
        pass
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from transformers import Seq2SeqTrainer, Trainer

from ..compat.ddp import DistributedDataParallel
from .accelerate import GossamerAccelerator, meet_accelerate
from .mean import mean_of

__all__ = [
    "GossamerSeq2SeqTrainer",
    "GossamerTrainer",
    "GossamerTrainerMixin",
    "meet_accelerate",
]


class GossamerTrainerMixin:
    """Has a Trainer train with compat.ddp.DistributedDataParallel in place of PyTorch's.

    It stands before the Trainer's class, as in ``class Mine(GossamerTrainerMixin, Trainer)``.

    With gossip the ranks' models differ while they train. Evaluation and checkpoints take their
    mean, and after train() every rank has the mean; checkpoints have the optimizer of rank 0.

    Parameters
    ----------
    *args, **kwargs
        Those of the Trainer.
    gossamer
        Options of compat.ddp.DistributedDataParallel, as algorithm, topology, codec.

    Raises
    ------
    ConfigError
        If Accelerate knows another number of processes than the session has, and for algorithms
        whose ranks make different numbers of steps.
    """

    accelerator: Any
    model: Any
    model_wrapped: Any

    def __init__(
        self, *args: Any, gossamer: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self._options = dict(gossamer or {})
        super().__init__(*args, **kwargs)

    def create_accelerator_and_postprocess(self) -> None:
        """Have the Trainer's Accelerator wrap models with the drop-in."""
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        GossamerAccelerator.adopt(self.accelerator, self._options)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train, and become the mean of all ranks' models for good."""
        result = super().train(*args, **kwargs)  # type: ignore[misc]
        wrapped = self.model_wrapped
        with mean_of(wrapped, keep=True):
            pass
        if isinstance(wrapped, DistributedDataParallel):
            wrapped.finish()
            # The next train() wraps the model anew. Where an exception has ended the last one, this
            # one has gone on with its wrapper, which the Accelerator has forgotten.
            if wrapped in self.accelerator._models:
                self.accelerator._models.remove(wrapped)
        self.model_wrapped = self.model
        return result

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate the mean of all ranks' models."""
        with mean_of(self.model_wrapped):
            return super().evaluate(*args, **kwargs)  # type: ignore[misc]

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Let the mean of all ranks' models predict."""
        with mean_of(self.model_wrapped):
            return super().predict(*args, **kwargs)  # type: ignore[misc]

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Save the mean of all ranks' models. Collective."""
        with mean_of(self.model_wrapped):
            super().save_model(*args, **kwargs)  # type: ignore[misc]

    def _load_best_model(self) -> None:
        """Go on from the best checkpoint, which is the same on all ranks."""
        wrapped = self.model_wrapped
        is_wrapped = isinstance(wrapped, DistributedDataParallel)
        with wrapped.write_parameters() if is_wrapped else contextlib.nullcontext():
            super()._load_best_model()  # type: ignore[misc]


class GossamerTrainer(GossamerTrainerMixin, Trainer):
    """A Trainer that trains as GossamerTrainerMixin says."""


class GossamerSeq2SeqTrainer(GossamerTrainerMixin, Seq2SeqTrainer):
    """A Seq2SeqTrainer that trains as GossamerTrainerMixin says."""
