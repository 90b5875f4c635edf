#!/usr/bin/env python3
"""Times a step of a sharded model between nodes: PyTorch's HSDP, and gossip in float32 and in int8.

    export GOSSAMER_SECRET=$(build/release/gossamer secret)
    scripts/hosts.sh --hosts 2 --rate 500mbit each scripts/lab/islands_step.py --torchrun
    torchrun --nproc-per-node 4 scripts/lab/islands_step.py --nodes 2 --losses

With --torchrun the script starts torchrun on this host, with two ranks (GOSSAMER_HOST is the host's
number). The ways take turns in one run, and rank 0 prints one JSON line: the median seconds of a step
by way, and each divided by HSDP's. --losses instead trains by gossip, sharded and unsharded (one
replica for each node, in this process), and prints the largest difference of the losses.
The package must be on PYTHONPATH. gloo, on processors.
"""

import argparse
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gossamer as gs

VOCABULARY = 256


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, max(1, width // 64), batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, attn_mask=mask, is_causal=True, need_weights=False)[0]
        return x + self.mlp(self.norms[1](x))


class Gpt(nn.Module):
    def __init__(self, width, num_layers, context):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(num_layers))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make(options):
    torch.manual_seed(0)
    return Gpt(options.width, options.layers, options.context)


def shard(net, mesh):
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def loss_of(net, options, step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    # A text in which each token says the next one, up to noise.
    first = torch.randint(0, VOCABULARY, (options.batch, 1), generator=generator)
    noise = torch.randint(0, 3, (options.batch, options.context + 1), generator=generator)
    text = (first + 7 * torch.arange(options.context + 1) + noise) % VOCABULARY
    logits = net(text[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


class Way:
    """A model that steps in one way."""

    def __init__(self, name, options, mesh):
        self.net = shard(make(options), mesh if name == "hsdp" else mesh["shard"])
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=3e-4)
        self.gossip = None
        if name != "hsdp":
            self.gossip = gs.ShardedGossip(
                self.net, self.optimizer, "one-peer-exp", mesh=mesh, codec=name
            )

    def step(self, options, number):
        loss = loss_of(self.net, options, number, dist.get_rank())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def times(options, mesh):
    found = {}
    for name in ("hsdp", "fp32", "int8"):
        way = Way(name, options, mesh)
        seconds = []
        # Codecs send plain blocks until the ranks have agreed on a grid.
        for number in range(options.warm_up + options.steps):
            begin = time.perf_counter()
            way.step(options, number)
            seconds.append(time.perf_counter() - begin)
        if way.gossip is not None:
            way.gossip.finish()
        dist.barrier()
        found[name] = statistics.median(seconds[options.warm_up :])
        num_parameters = sum(p.numel() for p in way.net.parameters())
    ratios = {f"{name} / hsdp": s / found["hsdp"] for name, s in found.items() if name != "hsdp"}
    return {"parameters": num_parameters, "seconds": found} | ratios


def losses(options, mesh):
    """Return how far the losses are from those of unsharded replicas that gossip."""
    way = Way("fp32", options, mesh)
    ranks = [[2 * node, 2 * node + 1] for node in range(options.nodes)]
    nets = [make(options) for _ in ranks] if dist.get_rank() == 0 else []
    optimizers = [torch.optim.AdamW(net.parameters(), lr=3e-4) for net in nets]
    worst, last = 0.0, torch.zeros(())
    for number in range(options.steps):
        own = way.step(options, number)
        all_losses = [torch.zeros(()) for _ in range(dist.get_world_size())]
        dist.all_gather(all_losses, torch.tensor(own))
        if dist.get_rank() != 0:
            continue
        before = [[p.detach().clone() for p in net.parameters()] for net in nets]
        for node, net in enumerate(nets):
            for rank in ranks[node]:
                last = loss_of(net, options, number, rank)
                worst = max(worst, abs(last.item() - all_losses[rank].item()))
                (last / 2).backward()
        for node, net in enumerate(nets):
            if number > 0:
                with torch.no_grad():
                    pairs = zip(net.parameters(), before[node], before[1 - node], strict=True)
                    for p, mine, other in pairs:
                        p.copy_(0.5 * mine + 0.5 * other)
            optimizers[node].step()
            optimizers[node].zero_grad()
    way.gossip.finish()
    num_parameters = sum(p.numel() for p in way.net.parameters())
    return {"parameters": num_parameters, "largest difference": worst, "last loss": float(last.detach())}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torchrun", action="store_true")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--losses", action="store_true")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4, help="pieces of a rank")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=20)
    options = parser.parse_args()
    if options.torchrun:
        host = os.environ["GOSSAMER_HOST"]
        own = [a for a in sys.argv[1:] if a != "--torchrun"]
        run = ["--nnodes", str(options.nodes), "--node-rank", host, "--nproc-per-node", "2"]
        run += ["--master-addr", "10.77.0.1", "--master-port", "29400"]
        os.environ |= {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
        os.execv(
            sys.executable,
            [sys.executable, "-m", "torch.distributed.run", *run, os.path.abspath(__file__), *own],
        )
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    gs.initialize_dist()
    shape = (options.nodes, dist.get_world_size() // options.nodes)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("node", "shard"))
    found = losses(options, mesh) if options.losses else times(options, mesh)
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
