#!/usr/bin/env python3
"""Times the sum by which the ranks of a node that may be lost tell one another of losses.

    export GOSSAMER_SECRET=$(build/release/gossamer secret)
    for node in 0 1; do
      torchrun --standalone --nproc-per-node 2 -- scripts/lab/islands_survive.py --node $node &
    done; wait

Two nodes of two ranks train by gossip with survive=True. Blocks of steps with the sum and without
it take turns. Rank 0 prints one JSON line: the median seconds of a step with the sum and without it,
the median of the ratios of neighbouring blocks, and the median seconds of the sum itself.
The package must be on PYTHONPATH. gloo, on processors.
"""

import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist
from islands_step import loss_of, make, shard
from torch.distributed.device_mesh import init_device_mesh

import gossamer as gs


class Times:
    """Makes steps with the sum, or without it, and times them."""

    def __init__(self, options, mesh):
        self.options = options
        self.net = shard(make(options), mesh)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=3e-4)
        self.gossip = gs.ShardedGossip(self.net, self.optimizer, "one-peer-exp")
        self.mates = self.gossip.trainer.islands.mates
        self.sum = self.mates.share_loss
        self.sums = []
        self.number = 0

    def timed_sum(self, lost):
        begin = time.perf_counter()
        self.sum(lost)
        self.sums.append(time.perf_counter() - begin)

    def block(self, has_sum):
        """Return the seconds of each step."""
        self.mates.share_loss = self.timed_sum if has_sum else lambda lost: None
        seconds = []
        for _ in range(self.options.steps):
            begin = time.perf_counter()
            loss_of(self.net, self.options, self.number, self.gossip.node).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            seconds.append(time.perf_counter() - begin)
            self.number += 1
        return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--node", type=int, required=True)
    parser.add_argument("--rendezvous", default="127.0.0.1:29477")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4, help="pieces of a rank")
    parser.add_argument("--steps", type=int, default=10, help="of a block")
    parser.add_argument("--blocks", type=int, default=20, help="pairs of them")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    gs.initialize_dist(rendezvous=options.rendezvous, nodes=2, node=options.node, survive=True)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
    times = Times(options, mesh)
    times.block(True)
    times.sums.clear()
    pairs = [(times.block(False), times.block(True)) for _ in range(options.blocks)]
    without, with_sum = (statistics.median(s for pair in pairs for s in pair[i]) for i in (0, 1))
    ratios = [statistics.median(two) / statistics.median(one) for one, two in pairs]
    times.mates.share_loss = times.sum
    times.gossip.finish()
    if gs.current_session().rank == 0:
        found = {"parameters": sum(p.numel() for p in times.net.parameters())}
        found |= {"seconds with the sum": with_sum, "without": without}
        found |= {"ratio": statistics.median(ratios), "the sum": statistics.median(times.sums)}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
