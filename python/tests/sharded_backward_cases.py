"""A rank of test_sharded_backward.py: 2 nodes of 2 ranks, whose steps backward() makes.

It prints, by case, how far its model is from unsharded replicas that gossip, one for each node.
"""

from __future__ import annotations

import json

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from conftest import digest
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gossamer as gs

NODES = 2
STEPS = 8


def sgd(ps):
    return torch.optim.SGD(ps, lr=0.1, momentum=0.9)


def adamw(ps):
    return torch.optim.AdamW(ps, lr=0.01)


def rmsprop(ps):
    return torch.optim.RMSprop(ps, lr=0.01)


def make_net(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 5)).to(dtype)


def shard(net, mesh):
    fully_shard(net[0], mesh=mesh["shard"])
    fully_shard(net, mesh=mesh["shard"])
    return net


def loss_of(net, step, rank):
    seed = torch.Generator().manual_seed(100 * step + rank)
    dtype = net.module[0].weight.dtype if hasattr(net, "module") else net[0].weight.dtype
    x = torch.randn(4, 7, generator=seed, dtype=torch.float64).to(dtype)
    y = torch.randint(0, 5, (4,), generator=seed)
    return nn.functional.cross_entropy(net(x), y)


class Replicas:
    """Unsharded replicas that gossip in a ring of two, with PyTorch's optimizers."""

    def __init__(self, optim_fn, dtype, clip):
        self.nets = [make_net(dtype) for _ in range(NODES)]
        self.optimizers = [optim_fn(net.parameters()) for net in self.nets]
        self.clip = clip

    def step(self, step):
        before = [[p.detach().clone() for p in net.parameters()] for net in self.nets]
        for node, net in enumerate(self.nets):
            net.zero_grad()
            for place in range(2):
                (loss_of(net, step, 2 * node + place) / 2).backward()
            if self.clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), self.clip)
        for node, net in enumerate(self.nets):
            if step > 0:
                with torch.no_grad():
                    pairs = zip(net.parameters(), before[node], before[1 - node], strict=True)
                    for p, own, other in pairs:
                        p.copy_(0.5 * own + 0.5 * other)
            self.optimizers[node].step()


def difference(net, reference):
    with torch.no_grad():
        return max(
            float((p.full_tensor() - q).abs().max())
            for p, q in zip(net.parameters(), reference.parameters(), strict=True)
        )


def follow(mesh, optim_fn, dtype=torch.float64, clip=None):
    """Return the largest difference after any step."""
    options = {} if clip is None else {"grad_clip": "global", "grad_clip_norm": clip}
    net = shard(make_net(dtype), mesh)
    model = gs.DecentralizedDataParallel(net, optim_fn, "ring", mesh=mesh, options=options)
    replicas = Replicas(optim_fn, dtype, clip)
    worst = 0.0
    for step in range(STEPS):
        loss_of(model, step, dist.get_rank()).backward()
        replicas.step(step)
        worst = max(worst, difference(net, replicas.nets[model.islands.node]))
    all_parameters = [list(net.parameters()) for net in replicas.nets]
    mean = [torch.stack(ps).mean(0) for ps in zip(*all_parameters, strict=True)]
    with torch.no_grad(), model.global_average():
        pairs = zip(net.parameters(), mean, strict=True)
        worst = max(worst, *(float((p.full_tensor() - q).abs().max()) for p, q in pairs))
    model.finish()
    return worst


def skipped(mesh):
    """Return the steps that this rank has skipped, where place 1 of node 0 has one bad loss."""
    model = gs.DecentralizedDataParallel(
        shard(make_net(), mesh), sgd, "ring", mesh=mesh, options={"nonfinite": "skip"}
    )
    for step in range(4):
        bad = dist.get_rank() == 1 and step == 2
        (loss_of(model, step, dist.get_rank()) * (float("nan") if bad else 1.0)).backward()
    model.finish()
    return model.metrics()["skipped_steps"]


def goes_on(mesh, folder, optim_fn):
    """Return digests of a run that goes on, and of one that has loaded its state."""
    found = []
    for begin in (0, 4):
        net = shard(make_net(), mesh)
        model = gs.DecentralizedDataParallel(net, optim_fn, "ring", mesh=mesh)
        if begin > 0:
            dcp.load({"run": gs.dcp_state(model)}, checkpoint_id=folder)
        for step in range(begin, STEPS):
            loss_of(model, step, dist.get_rank()).backward()
            if step == 3:
                dcp.save({"run": gs.dcp_state(model)}, checkpoint_id=folder)
        found.append(digest([p.full_tensor().tolist() for p in net.parameters()]))
        model.finish()
    return found


def refusal(call):
    try:
        call()
    except gs.ConfigError as error:
        return str(error)
    return ""


def refusals(mesh):
    def wrap(optim_fn=sgd, **options):
        return gs.DecentralizedDataParallel(shard(make_net(), mesh), optim_fn, mesh=mesh, **options)

    def older_graph():
        model = wrap()
        first, second = (loss_of(model, step, 0) for step in range(2))
        first.backward()
        second.backward()

    def matrices():
        net = nn.Linear(8, 8, bias=False)
        fully_shard(net, mesh=mesh["shard"])
        gs.DecentralizedDataParallel(net, lambda ps: gs.optim.Muon(ps, lr=0.1), mesh=mesh)

    return {
        "older graph": refusal(older_graph),
        "per_bucket": refusal(lambda: wrap(options={"grad_clip": "per_bucket"})),
        "muon": refusal(matrices),
        "node_gossip": refusal(lambda: wrap(algorithm="node_gossip")),
    }


def main(folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    gs.initialize_dist(timeout_s=60)
    mesh = init_device_mesh("cpu", (NODES, 2), mesh_dim_names=("node", "shard"))
    print(
        json.dumps(
            {
                "sgd": follow(mesh, sgd),
                "adamw": follow(mesh, adamw),
                "adamw float32": follow(mesh, adamw, torch.float32),
                "rmsprop": follow(mesh, rmsprop),
                "clip": follow(mesh, sgd, clip=0.05),
                "skipped": skipped(mesh),
                "adamw goes on": goes_on(mesh, f"{folder}/adamw", adamw),
                "rmsprop goes on": goes_on(mesh, f"{folder}/rmsprop", rmsprop),
                "refused": refusals(mesh),
            }
        )
    )


if __name__ == "__main__":
    import sys

    main(sys.argv[1])
