"""A rank of a node that is a member of a run: nodes are lost, and join, as a whole.

Arguments: the folder where the run meets, this node's number, the algorithm, and what the ranks do,
as "die,hang": "stay", "join", "die" at step 5, or "hang" there for ever.
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from islands import adamw, loss_of, make
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gossamer as gs

AFTER = 20


def main() -> None:
    torch.set_num_threads(1)
    folder, node, algorithm = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    role = sys.argv[4].split(",")[int(os.environ["RANK"])]
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=600))
    place = os.environ["GOSSAMER_RENDEZVOUS"] = f"file:{folder}"
    gs.initialize_dist(
        timeout_s=120,
        security="none",
        survive=True,
        join=place if role == "join" else "",
        nodes=3,
        node=node,
        silence_s=5.0,
    )
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
    net = make()
    with torch.no_grad():
        for p in net.parameters():
            # Nodes begin with the values of node 0.
            p.add_(node)
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = adamw(net.parameters())
    if role == "join":
        optimizer.param_groups[0]["lr"] = 1.0
    refused = []
    for wrap in (gs.ShardedGossip, gs.DecentralizedDataParallel):
        try:
            wrap(net, optimizer, mesh=mesh)
        except gs.ConfigError as error:
            refused.append(str(error))
    gossip = gs.ShardedGossip(net, optimizer, "base-k", algorithm=algorithm)
    admitted: list[float] = []
    sizes: list[int] = []
    last = None

    def local_sum() -> float:
        return sum(p.to_local().double().square().sum().item() for p in net.parameters())

    def note(change: gs.MembershipChange) -> None:
        nonlocal last
        sizes.append(gossip.session.world_size)
        if change.joined:
            admitted.append(local_sum())
            last = change.step + AFTER

    gossip.session.on_change(note)
    if role == "join":
        last = gossip.num_steps + AFTER
        admitted.append(local_sum())
    losses = []
    while last is None or gossip.num_steps < last:
        step = gossip.num_steps
        if role == "die" and step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        if role == "hang" and step == 5:
            time.sleep(600)
        optimizer.zero_grad()
        # The same batch in each step, so that the loss falls.
        loss = loss_of(net, 0, gossip.node, gossip.place)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        if step % 4 == 3:
            with gossip.global_average():
                pass
        time.sleep(0.005)
    with gossip.global_average():
        norm = local_sum()
    updates = {int(state["step"]) for state in optimizer.state.values()}
    print(
        json.dumps(
            {
                "node": gossip.node,
                "place": gossip.place,
                "steps": gossip.num_steps,
                "updates": sorted(updates),
                "lr": optimizer.param_groups[0]["lr"],
                "members": gs.current_session().members,
                "nodes": gossip.session.world_size,
                "sizes": sizes,
                "admitted": admitted,
                "mean": norm,
                "losses": [losses[0], losses[-1]],
                "refused": refused,
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
