"""A rank of a node that has a job of its own: it trains, and then node 1 loses its place 0."""

from __future__ import annotations

import datetime
import json
import os
import signal
import sys

import torch
import torch.distributed as dist
from islands import adamw, loss_of, make
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gossamer as gs


def main() -> None:
    torch.set_num_threads(1)
    folder, node = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=600))
    gs.initialize_dist(
        timeout_s=600, rendezvous=f"file:{folder}", security="none", nodes=2, node=node
    )
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
    net = make()
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = adamw(net.parameters())
    gossip = gs.ShardedGossip(net, optimizer, "one-peer-exp")
    place = gossip.place

    def step(t: int) -> None:
        optimizer.zero_grad()
        loss_of(net, t, node, place).backward()
        optimizer.step()

    for t in range(4):
        step(t)
    with gossip.global_average() as distance:
        norm = sum(p.full_tensor().square().sum().item() for p in net.parameters())
    whole = gs.current_session()
    print(json.dumps([whole.rank, whole.world_size, gossip.node, place, norm, distance > 0]))
    sys.stdout.flush()
    whole.barrier()
    for t in range(1000):
        if (node, place, t) == (1, 0, 3):
            os.kill(os.getpid(), signal.SIGKILL)
        step(4 + t)


if __name__ == "__main__":
    main()
