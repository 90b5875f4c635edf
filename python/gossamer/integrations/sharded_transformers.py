"""A Trainer of transformers whose model is sharded inside each node, with gossip between nodes.

torchrun starts the processes. FSDP2 and the data are the Trainer's own::

    arguments = transformers.TrainingArguments(
        "out",
        fsdp=True,
        parallelism_config=NodeParallelism(dp_replicate_size=nodes, dp_shard_size=local),
    )
    options = {"topology": "one-peer-exp", "codec": "int8"}
    ShardedGossamerTrainer(model, arguments, train_dataset=data, gossamer=options).train()

Any other kind of Trainer gets a class of its own::

    class ShardedSFTTrainer(ShardedGossamerTrainerMixin, trl.SFTTrainer):
        pass
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import Trainer, TrainerCallback

from ..sharded import ShardedGossip
from .mean import mean_of
from .sharded_accelerate import NodeParallelism, gossip_of

__all__ = ["NodeParallelism", "ShardedGossamerTrainer", "ShardedGossamerTrainerMixin"]


class ShardedGossamerTrainerMixin:
    """Has a Trainer's nodes gossip, each of which shards the model by FSDP2.

    It stands before the Trainer's class. Evaluation, predictions and checkpoints take the mean of
    the nodes, and after train() every node has the mean. Checkpoints have node 0's optimizer.

    Parameters
    ----------
    *args, **kwargs
        Arguments of the Trainer. The TrainingArguments have ``fsdp=True``, and a NodeParallelism as
        parallelism_config.
    gossamer
        Options of ShardedGossip, as topology, algorithm, codec.

    Raises
    ------
    ConfigError
        In train(), for another parallelism_config, and as ShardedGossip does.
    """

    accelerator: Any
    gossip: ShardedGossip | None = None
    """What train() gossips with, inside of train()."""

    def __init__(
        self, *args: Any, gossamer: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.add_callback(_Beginning(self, dict(gossamer or {})))  # type: ignore[attr-defined]

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train, and become the mean of all nodes' models for good."""
        result = super().train(*args, **kwargs)  # type: ignore[misc]
        with mean_of(self.gossip, keep=True):
            pass
        if self.gossip is not None:
            self.gossip.finish()
            self.gossip = None
        return result

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate the mean of all nodes' models."""
        with mean_of(self.gossip):
            return super().evaluate(*args, **kwargs)  # type: ignore[misc]

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Let the mean of all nodes' models predict."""
        with mean_of(self.gossip):
            return super().predict(*args, **kwargs)  # type: ignore[misc]

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Save the mean of all nodes' models. Collective."""
        with mean_of(self.gossip):
            super().save_model(*args, **kwargs)  # type: ignore[misc]

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        with mean_of(self.gossip):
            super()._save_checkpoint(*args, **kwargs)  # type: ignore[misc]

    def _load_best_model(self) -> None:
        """Go on from the best checkpoint, which is the same on all nodes."""
        assert self.gossip is not None
        with self.gossip.write_parameters():
            super()._load_best_model()  # type: ignore[misc]


class _Beginning(TrainerCallback):
    """Makes the ShardedGossip when the Trainer has sharded the model."""

    def __init__(self, trainer: ShardedGossamerTrainerMixin, options: Mapping[str, Any]) -> None:
        self._trainer, self._options = trainer, options

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: Any, optimizer: Any, **rest: Any
    ) -> None:
        accelerator = self._trainer.accelerator
        self._trainer.gossip = gossip_of(accelerator, model, optimizer, **self._options)


class ShardedGossamerTrainer(ShardedGossamerTrainerMixin, Trainer):
    """A Trainer that trains as ShardedGossamerTrainerMixin says."""
