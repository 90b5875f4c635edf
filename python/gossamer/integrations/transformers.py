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

import torch
import transformers
from transformers import Seq2SeqTrainer, Trainer

from ..compat.ddp import DistributedDataParallel
from .accelerate import GossamerAccelerator, meet_accelerate
from .mean import mean_of
from .uneven import UnevenEpochs, count_of, longest

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

    The ranks may have different numbers of batches in an epoch, as with ``even_batches=False`` or a
    loader of one's own:

    1. A rank that has none left makes the others' steps without a gradient, as in the drop-in's
       join(), until all have ended the epoch. Its global_step and its schedule go on with them.
    2. Numbers of tokens, and losses that are logged, are then of the ranks that have a batch.
    3. Evaluating and saving in the middle of such an epoch is refused on all ranks when a rank has
       no batch left.

    Parameters
    ----------
    *args, **kwargs
        Arguments of the Trainer.
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
    state: Any
    current_flos: Any

    def __init__(
        self, *args: Any, gossamer: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self._options = dict(gossamer or {})
        self._epochs: UnevenEpochs | None = None
        super().__init__(*args, **kwargs)

    def create_accelerator_and_postprocess(self) -> None:
        """Have the Trainer's Accelerator wrap models with the drop-in."""
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        GossamerAccelerator.adopt(self.accelerator, self._options)
        self.accelerator.of_present = self._of_present

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train, and become the mean of all ranks' models for good."""
        try:
            result = super().train(*args, **kwargs)  # type: ignore[misc]
        finally:
            if self._epochs is not None:
                self._epochs.end()
                self._epochs = None
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

    def set_initial_training_values(self, args: Any, dataloader: Any) -> tuple[Any, ...]:
        """Count from the rank that has the most batches. Collective."""
        values: tuple[Any, ...] = super().set_initial_training_values(args, dataloader)  # type: ignore[misc]
        most, may_differ = longest(values, count_of(dataloader))
        if may_differ:
            self._epochs = UnevenEpochs(self)
        return most

    def _run_epoch(self, *args: Any, **kwargs: Any) -> Any:
        """Run an epoch, with this rank's number of batches."""
        own = count_of(kwargs["train_dataloader"])
        if self._epochs is not None and own is not None:
            kwargs["steps_in_epoch"] = own
        return super()._run_epoch(*args, **kwargs)  # type: ignore[misc]

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
        if self._epochs is not None and not batch_samples:
            return None
        return super()._get_num_items_in_batch(batch_samples, device)  # type: ignore[misc]

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Log the mean of the losses of the ranks that have a batch."""
        library: Any = transformers.trainer
        gather = library.nested_gather

        def gather_present(tensors: Any, *rest: Any) -> Any:
            found = self._of_present(tensors)
            return gather(tensors, *rest) if found is None else found

        library.nested_gather = gather_present
        try:
            super()._maybe_log_save_evaluate(*args, **kwargs)  # type: ignore[misc]
        finally:
            library.nested_gather = gather

    def store_flos(self) -> None:
        """Count the operations of the ranks that have a batch."""
        found = self._of_present(torch.tensor([self.current_flos], dtype=torch.float64))
        if found is None:
            return super().store_flos()  # type: ignore[misc, no-any-return]
        self.state.total_flos += found.sum().item()
        self.current_flos = 0

    def _of_present(self, tensor: torch.Tensor) -> torch.Tensor | None:
        return None if self._epochs is None else self._epochs.of_present(tensor)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate the mean of all ranks' models."""
        with self._with_all("evaluate()"), mean_of(self.model_wrapped):
            return super().evaluate(*args, **kwargs)  # type: ignore[misc]

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Let the mean of all ranks' models predict."""
        with mean_of(self.model_wrapped):
            return super().predict(*args, **kwargs)  # type: ignore[misc]

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Save the mean of all ranks' models. Collective."""
        with self._with_all("save_model()"), mean_of(self.model_wrapped):
            super().save_model(*args, **kwargs)  # type: ignore[misc]

    def _with_all(self, call: str) -> contextlib.AbstractContextManager[None]:
        """Be the scope of a collective call, which needs all ranks."""
        return contextlib.nullcontext() if self._epochs is None else self._epochs.with_all(call)

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
