"""Training of neural networks without a centre.

Every worker keeps its own parameters and trains on its own data. After each step it mixes them with
the parameters of a few peers, while the next forward and backward already run::

    import gossamer as gs

    gs.initialize_dist()
    model = gs.DecentralizedDataParallel(net, lambda ps: torch.optim.AdamW(ps, lr=1e-3))
    for x, y in loader:
        loss_fn(model(x), y).backward()  # updates, mixes, starts the next exchange
    with model.global_average():
        evaluate(model)
"""

import importlib
from typing import TYPE_CHECKING

from ._core import (
    CheckpointError,
    CommError,
    ConfigError,
    DataError,
    NonFiniteError,
    PeerLost,
    version,
)
from .distributed import Session, current_session, finalize_dist, initialize_dist, run_threads

if TYPE_CHECKING:
    from . import optim
    from .checkpoints import Checkpoints
    from .data_parallel import DecentralizedDataParallel
    from .devices import local_device
    from .distributed_checkpoint import dcp_state
    from .own_topologies import OwnTopology, World
    from .run import Run
    from .sampler import ElasticSampler
    from .sharded import ShardedGossip
    from .split import split_for_rank
    from .studies import plan, simulate
    from .survival import MembershipChange
    from .topologies import Topology, topology, topology_names

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "CommError",
    "ConfigError",
    "DataError",
    "DecentralizedDataParallel",
    "ElasticSampler",
    "MembershipChange",
    "NonFiniteError",
    "OwnTopology",
    "PeerLost",
    "Run",
    "Session",
    "ShardedGossip",
    "Topology",
    "World",
    "__version__",
    "current_session",
    "dcp_state",
    "finalize_dist",
    "initialize_dist",
    "local_device",
    "measure_compute",
    "optim",
    "plan",
    "run_threads",
    "simulate",
    "split_for_rank",
    "topology",
    "topology_names",
]

__version__ = version()

# Imported when they are used: PyTorch's import takes a second, numpy's a tenth.
_LATER = {
    "Checkpoints": "checkpoints",
    "DecentralizedDataParallel": "data_parallel",
    "ElasticSampler": "sampler",
    "MembershipChange": "survival",
    "OwnTopology": "own_topologies",
    "Run": "run",
    "ShardedGossip": "sharded",
    "Topology": "topologies",
    "World": "own_topologies",
    "dcp_state": "distributed_checkpoint",
    "local_device": "devices",
    "measure_compute": "measure",
    "plan": "studies",
    "simulate": "studies",
    "split_for_rank": "split",
    "topology": "topologies",
    "topology_names": "topologies",
}


def __getattr__(name: str) -> object:
    if name == "optim":
        return importlib.import_module(".optim", __name__)
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_LATER[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
