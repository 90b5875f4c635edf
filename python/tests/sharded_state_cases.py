"""A rank of test_sharded_state.py: trains sharded nodes, saves or loads, and prints what it has.

Arguments: "save" or a value of reshape, the folder of the checkpoints.
"""

from __future__ import annotations

import json
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from conftest import digest
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gossamer as gs

NODES = 2
OPTIONS = {
    "gossip": {"topology": "ring"},
    "int8": {"topology": "ring", "codec": "int8"},
    "gradient_tracking": {"topology": "ring", "algorithm": "gradient_tracking"},
    "outer": {"algorithm": {"name": "outer", "every": 3}},
    "allreduce": {"algorithm": "allreduce"},
}


def make(name, seed):
    mesh = init_device_mesh(
        "cpu", (NODES, dist.get_world_size() // NODES), mesh_dim_names=("node", "shard")
    )
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.BatchNorm1d(9), nn.Linear(9, 5))
    fully_shard(net[0], mesh=mesh["shard"])
    fully_shard(net, mesh=mesh["shard"])
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    return net, optimizer, gs.ShardedGossip(net, optimizer, mesh=mesh, **OPTIONS[name])


def train(net, optimizer, gossip, steps):
    for step in steps:
        # The ranks of a node have one batch, so that the number of ranks does not change the sums.
        seed = torch.Generator().manual_seed(100 * step + gossip.node)
        x = torch.randn(4, 7, generator=seed)
        y = torch.randint(0, 5, (4,), generator=seed)
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def whole(net, *, buffers):
    state = net.state_dict() if buffers else dict(net.named_parameters())
    full = {n: t.full_tensor() if hasattr(t, "full_tensor") else t for n, t in state.items()}
    return digest(torch.cat([t.detach().flatten().double() for t in full.values()]).tolist())


def main():
    what, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    gs.initialize_dist(timeout_s=60)
    found = {}
    for name in OPTIONS:
        net, optimizer, gossip = make(name, seed=0 if what == "save" else 9)
        if what == "save":
            train(net, optimizer, gossip, range(5))
            dcp.save({"run": gs.dcp_state(gossip)}, checkpoint_id=folder / name)
        else:
            state = {"run": gs.dcp_state(gossip, reshape=what)}
            dcp.load(state, checkpoint_id=folder / name)
        if what == "average":
            with gossip.global_average() as distance:
                found[name] = [whole(net, buffers=False), distance]
        else:
            train(net, optimizer, gossip, range(5, 9))
            found[name] = [whole(net, buffers=True), whole(net, buffers=False)]
        gossip.finish()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
