"""Epochs of a transformers Trainer whose ranks have different numbers of batches."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_utils import has_length

from ..compat.ddp import DistributedDataParallel
from ..compat.joining import Joining
from ..distributed import current_session

__all__ = ["UnevenEpochs", "count_of", "longest"]


def longest(values: tuple[Any, ...], num_batches: int | None) -> tuple[tuple[Any, ...], bool]:
    """Return the numbers of the rank with the most batches, and whether ranks may have fewer.

    Parameters
    ----------
    values
        What the Trainer has counted from this rank's number of batches. Collective.
    num_batches
        This rank's batches of an epoch; None: unknown.
    """
    own = json.dumps([num_batches, list(values)])
    found = [json.loads(text) for text in current_session().all_gather(own)]
    nums = [num for num, _ in found]
    if None in nums:
        return values, True
    most: list[Any] = max(found, key=lambda one: one[0])[1]
    return tuple(most), len(set(nums)) > 1


def count_of(loader: Any) -> int | None:
    """Return the number of batches of a loader; None: unknown."""
    return len(loader) if has_length(loader) else None


class UnevenEpochs(TrainerCallback):
    """Has ranks that end an epoch earlier make the steps of the others.

    Parameters
    ----------
    trainer
        The Trainer, which begins to train.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.joining: Joining | None = None
        """What ranks tell each other; None: no epoch is under way."""
        # Other callbacks come later, and may make collective calls.
        trainer.callback_handler.callbacks.insert(0, self)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Begin an epoch."""
        wrapped = self._trainer.model_wrapped
        if isinstance(wrapped, DistributedDataParallel):
            self.joining = wrapped.begin_join()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> Any:
        """Wait for the ranks that have batches left."""
        joining, self.joining = self.joining, None
        if joining is not None:
            joining.wait_for_others(self._after_step)
            joining.end()
            # A rank without any batch would end alone.
            control.should_training_stop = state.global_step >= state.max_steps
        return control

    def _after_step(self) -> None:
        """Count a step of the others."""
        self._trainer.state.global_step += 1
        self._trainer.lr_scheduler.step()

    def of_present(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the tensors of the ranks that have a batch, in one; None: outside of epochs."""
        if self.joining is None:
            return None
        rows = tensor.reshape(1) if tensor.dim() == 0 else tensor
        found = [json.loads(text) for text in self.joining.texts(json.dumps(rows.tolist()))]
        return torch.cat([torch.tensor(one, dtype=rows.dtype) for one in found]).to(rows.device)

    @contextlib.contextmanager
    def with_all(self, call: str) -> Iterator[None]:
        """Make a collective call inside the scope; refused where a rank has no batch left."""
        joining, self.joining = self.joining, None
        if joining is not None:
            joining.refuse_absent(call)
        try:
            yield
        finally:
            self.joining = joining

    def end(self) -> None:
        """Leave the Trainer as it was."""
        self._trainer.callback_handler.callbacks.remove(self)
