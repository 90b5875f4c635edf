"""Training of neural networks without a centre.

Every worker keeps its own parameters, trains on its own data, and after each step mixes them with a
few peers that a topology picks, while the next forward and backward already run::

    import gossamer as gs

    gs.initialize_dist()
    model = gs.DecentralizedDataParallel(net, lambda ps: torch.optim.AdamW(ps, lr=1e-3))
    for x, y in loader:
        loss_fn(model(x), y).backward()  # updates, mixes, starts the next exchange
    with model.global_average():
        evaluate(model)
"""

from ._core import CheckpointError, CommError, ConfigError, DataError, NonFiniteError
from .distributed import Session, current_session, finalize_dist, initialize_dist, run_threads
from .topologies import Topology, topology, topology_names

__all__ = [
    "CheckpointError",
    "CommError",
    "ConfigError",
    "DataError",
    "DecentralizedDataParallel",
    "NonFiniteError",
    "Session",
    "Topology",
    "current_session",
    "finalize_dist",
    "initialize_dist",
    "run_threads",
    "topology",
    "topology_names",
]


def __getattr__(name: str) -> object:
    # Only the wrapper needs PyTorch, whose import takes a second.
    if name == "DecentralizedDataParallel":
        from .data_parallel import DecentralizedDataParallel

        return DecentralizedDataParallel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
