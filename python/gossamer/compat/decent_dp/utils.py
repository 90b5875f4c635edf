"""decent-dp's beginning of a script."""

from __future__ import annotations

from ... import distributed

__all__ = ["initialize_dist"]


def initialize_dist() -> tuple[int, int]:
    """Meet the other processes; return this process's rank, and the number of ranks.

    As gossamer.initialize_dist(): under mpirun or srun, or one process alone. torch.distributed is
    not initialized; ``gossamer.current_session()`` has barrier(), sum() and all_gather().
    """
    return distributed.initialize_dist()
