"""How accelerate shards a model inside each node, so that the nodes can gossip.

``accelerate launch --use_fsdp`` or torchrun starts the processes, and the loop stays as it is::

    parallelism = NodeParallelism(dp_replicate_size=nodes, dp_shard_size=local)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    accelerator = Accelerator(fsdp_plugin=plugin, parallelism_config=parallelism)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    gossip = gossip_of(accelerator, model, optimizer, topology="one-peer-exp")
"""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from accelerate.parallelism_config import ParallelismConfig

from .._core import ConfigError
from ..distributed import initialize_dist
from ..sharded import ShardedGossip

__all__ = ["NodeParallelism", "gossip_of"]

_NODES = "dp_replicate"


class NodeParallelism(ParallelismConfig):
    """A ParallelismConfig with which FSDP shards inside each node alone.

    ``dp_replicate_size`` is the number of nodes, over which accelerate still deals the data.
    """

    @property
    def fsdp_dim_names(self) -> list[str]:
        """The dimensions that fully_shard() knows, without that of the nodes."""
        return [name for name in super().fsdp_dim_names if name != _NODES]


def gossip_of(
    accelerator: Accelerator, model: torch.nn.Module, optimizer: Any, **options: Any
) -> ShardedGossip:
    """Have a prepared optimizer gossip between the nodes. Collective of all ranks.

    Parameters
    ----------
    accelerator
        An Accelerator whose parallelism_config is a NodeParallelism.
    model, optimizer
        What its prepare() has returned.
    **options
        Options of ShardedGossip, as topology, algorithm, codec.

    Raises
    ------
    ConfigError
        For another parallelism_config, and as ShardedGossip does.
    """
    parallelism = accelerator.parallelism_config
    if not isinstance(parallelism, NodeParallelism) or not parallelism.dp_replicate_enabled:
        raise ConfigError(
            f"parallelism_config is {parallelism}, allowed: "
            "NodeParallelism(dp_replicate_size=NODES, dp_shard_size=RANKS_OF_A_NODE) of two or "
            "more nodes"
        )
    initialize_dist()
    mesh = accelerator.torch_device_mesh
    return ShardedGossip(model, optimizer.optimizer, mesh=mesh, nodes=_NODES, **options)
