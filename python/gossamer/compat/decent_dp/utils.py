"""decent-dp's beginning of a script."""

from __future__ import annotations

import datetime
import os
import socket
import threading

import torch
import torch.distributed as dist
from torch.distributed import HashStore, Store, TCPStore  # type: ignore[attr-defined]

from ... import distributed

__all__ = ["initialize_dist"]

# As long as a session waits for its peers.
_TIMEOUT = datetime.timedelta(seconds=300)


def initialize_dist() -> tuple[int, int]:
    """Meet the other processes; return this process's rank, and the number of ranks.

    As gossamer.initialize_dist(): under torchrun, mpirun or srun, or one process alone. The
    processes are also a group of torch.distributed, with gloo, for what a script does beside
    training, as DistributedSampler or an all_reduce of a metric. Ranks that are threads have no
    such group. Of the GPUs of a host, each process sees one of its own afterwards.
    """
    rank, world_size = distributed.initialize_dist()
    is_process = threading.current_thread() is threading.main_thread()
    if is_process:
        _take_gpu(distributed.current_session().local_rank)
    if is_process and not dist.is_initialized():
        store = _meet(distributed.current_session())
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    return rank, world_size


def _take_gpu(local_rank: int) -> None:
    """Hide the other GPUs; where the driver has started already, take one of those it sees."""
    count = torch.cuda.device_count()
    if count > 1 and not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[local_rank % count]
    # It looks at the variable when it starts, and then never again.
    num_seen = torch._C._cuda_getDeviceCount() if count > 0 else 0
    if num_seen > 1:
        torch.cuda.set_device(local_rank % num_seen)


def _meet(session: distributed.Session) -> Store:
    """Return the store of rank 0, whose address the ranks of the session hear. Collective."""
    if session.world_size == 1:
        return HashStore()
    is_one_host = session.local_world_size == session.world_size
    host = "localhost" if is_one_host else socket.getfqdn()
    own = None
    if session.rank == 0:
        own = TCPStore(host, 0, session.world_size, True, _TIMEOUT, wait_for_workers=False)
    address = session.all_gather(f"{host} {own.port}" if own is not None else "")[0]
    if own is not None:
        return own
    host, port = address.split()
    return TCPStore(host, int(port), session.world_size, False, _TIMEOUT)
