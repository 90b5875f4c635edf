"""Two nodes of one rank each, which may share a GPU; what test_gpu.py runs."""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from islands import Rank, adamw, of_threads, replicas, sgd

import gossamer as gs
from gossamer.shards import groups_of


def main() -> None:
    device = sys.argv[1]
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    gs.initialize_dist(timeout_s=60)
    rank = Rank(2, 1, device)
    options = {"device": {"share": True}} if device == "cuda" else None
    found = {}
    for algorithm, optim_fn, want in (
        ("gossip", adamw, replicas(2, 1)),
        ("allreduce", sgd, of_threads(2, 1, algorithm="allreduce")),
    ):
        net = rank.sharded()
        optimizer = optim_fn(net.parameters())
        gossip = gs.ShardedGossip(
            net, optimizer, mesh=rank.mesh, algorithm=algorithm, options=options
        )
        streams: set[int] = set()

        def note(_: torch.Tensor, streams: set[int] = streams) -> None:
            streams.add(torch.cuda.current_stream().cuda_stream)

        for p in net.parameters() if device == "cuda" else []:
            p.register_post_accumulate_grad_hook(note)
        found[algorithm] = rank.worst(want, net, optimizer)
        shards, homes = gossip._trainer._trained.shards, gossip._trainer._trained._homes
        found["at home"] = all(s.is_at(home) for s, home in zip(shards, homes, strict=True))
        if device == "cuda":
            _, group = next(groups_of(net))
            found["streams"] = streams == {group.comm_ctx.reduce_scatter_stream.cuda_stream}
        gossip.finish()
    print(json.dumps(found))
    gs.finalize_dist()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
