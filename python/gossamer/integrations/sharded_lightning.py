"""A strategy for Lightning whose nodes gossip, and shard the model inside.

torchrun or Lightning itself starts the processes. The module shards itself in configure_model(),
as for Lightning's own ModelParallelStrategy::

    def configure_model(self):
        fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    strategy = ShardedGossamerStrategy(nodes=2, topology="one-peer-exp")
    lightning.Trainer(devices=8, num_nodes=2, strategy=strategy).fit(module, loader)
"""

from __future__ import annotations

import contextlib
from typing import Any

from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.device_mesh import init_device_mesh

from .._core import ConfigError
from ..distributed import initialize_dist
from ..sharded import ShardedGossip
from .mean import mean_of

__all__ = ["ShardedGossamerStrategy"]

_DIMENSIONS = ("node", "data_parallel", "tensor_parallel")


class ShardedGossamerStrategy(ModelParallelStrategy):
    """Trains a LightningModule that is sharded inside each node with gossip between the nodes.

    The mesh has the dimensions node, data_parallel and tensor_parallel. Validation and checkpoints
    take the mean of the nodes, and after fit() every node has the mean. The module has one
    optimizer. Checkpoints have node 0's.

    Parameters
    ----------
    nodes
        The number of nodes.
    tensor_parallel_size
        The ranks of a node that share a batch.
    **options
        Options of ShardedGossip, as topology, algorithm, codec.

    Raises
    ------
    ConfigError
        For nodes that do not divide the ranks, several optimizers, and as ShardedGossip does.
    """

    model: Any

    def __init__(self, nodes: int, *, tensor_parallel_size: int = 1, **options: Any) -> None:
        super().__init__(
            tensor_parallel_size=tensor_parallel_size, save_distributed_checkpoint=False
        )
        self._nodes = nodes
        self._options = options
        self._gossip: ShardedGossip | None = None
        self._scope = contextlib.ExitStack()

    def setup_environment(self) -> None:
        """Begin the process group and the session, and make the mesh."""
        tensors = self._tensor_parallel_size
        world = self.num_nodes * self.num_processes
        if world % (self._nodes * tensors):
            raise ConfigError(
                f"nodes is {self._nodes} and tensor_parallel_size is {tensors}, allowed: numbers "
                f"whose product divides the {world} ranks"
            )
        self._data_parallel_size = world // tensors
        super().setup_environment()
        shape = (self._nodes, world // tensors // self._nodes, tensors)
        mesh = init_device_mesh(self.root_device.type, shape, mesh_dim_names=_DIMENSIONS)
        self._device_mesh = self.lightning_module._device_mesh = mesh
        initialize_dist()

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Which part of the data is this rank's."""
        nodes, ranks, _ = self.device_mesh.shape
        node, place, _ = self.device_mesh.get_coordinate()
        return {"num_replicas": nodes * ranks, "rank": node * ranks + place}

    def setup_optimizers(self, trainer: Any) -> None:
        """Make the optimizer, and have it gossip."""
        super().setup_optimizers(trainer)
        if len(self.optimizers) != 1:
            raise ConfigError(
                f"configure_optimizers() returns {len(self.optimizers)} optimizers, allowed: one"
            )
        self._gossip = ShardedGossip(
            self.model, self.optimizers[0], mesh=self.device_mesh, nodes="node", **self._options
        )

    def on_validation_start(self) -> None:
        """Become the mean."""
        self._scope.enter_context(mean_of(self._gossip))

    def on_validation_end(self) -> None:
        """Become the node's own model again."""
        self._scope.close()

    def on_train_end(self) -> None:
        """Become the mean for good, and free the engine."""
        with mean_of(self._gossip, keep=True):
            pass
        if self._gossip is not None:
            self._gossip.finish()
            self._gossip = None

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the mean's values, on rank 0."""
        with mean_of(self._gossip):
            found = super().lightning_module_state_dict()
            return {name: x.clone() for name, x in found.items()}

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        """Have all nodes go on from a checkpoint."""
        gossip = self._gossip
        with contextlib.nullcontext() if gossip is None else gossip.write_parameters():
            return super().load_checkpoint(*args, **kwargs)
