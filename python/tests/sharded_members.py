"""A rank of a node that is a member of a run: nodes are lost, and join, as a whole.

Arguments: the folder where the run meets, this node's number, the name of the case, and what the
ranks do, as "die,hang": "stay", "join", "die" at step 5, or "hang" there for ever. "load": two
nodes of one rank each begin from what the case "gossip" has saved in the folder.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import json
import os
import pathlib
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from islands import adamw, loss_of, make, sgd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gossamer as gs

AFTER = 20
SAMPLES = 240
# Cases whose data a sampler deals, with batches of 2.
DEALT = ("allreduce", "gradient_tracking")


def local_sum(net):
    return sum(p.to_local().double().square().sum().item() for p in net.parameters())


def sharded(node):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
    net = make()
    with torch.no_grad():
        for p in net.parameters():
            # Nodes begin with the values of node 0.
            p.add_(node)
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net, adamw(net.parameters()), mesh


def refusals(net, optimizer, mesh):
    for wrap in (gs.ShardedGossip, gs.DecentralizedDataParallel):
        try:
            wrap(net, optimizer, mesh=mesh)
        except gs.ConfigError as error:
            yield str(error)


class Rank:
    """A rank that trains until some steps, or epochs, after a new node has joined."""

    def __init__(self, folder, case, role, net, optimizer):
        self.folder, self.case, self.role = folder, case, role
        self.net, self.optimizer = net, optimizer
        self.gossip = gs.ShardedGossip(
            net,
            optimizer,
            "base-k",
            algorithm=case,
            spread=case == "gradient_tracking",
        )
        self.sampler = gs.ElasticSampler(SAMPLES, 2, self.gossip) if case in DEALT else None
        self.last = None
        self.changes, self.sizes, self.admitted, self.losses = [], [], [], []
        self.gossip.session.on_change(self.note)
        if role == "join":
            self.last = self.gossip.num_steps + AFTER
            if self.sampler is not None:
                self.last = self.sampler.epoch + 2
            self.admitted.append(local_sum(net))
        self.run = None
        if case in ("outer", "allreduce"):
            self.run = gs.Run(folder / "run", self.gossip, every=4, progress=False)

    def note(self, change):
        self.sizes.append(self.gossip.session.world_size)
        self.changes.append([change.step, change.lost, change.joined])
        if change.joined:
            self.admitted.append(local_sum(self.net))
            self.last = change.step + AFTER
            if self.sampler is not None:
                self.last = self.sampler.place()[0] + 2

    def turns(self):
        """Give as many values as this rank makes steps."""
        if self.sampler is None:
            while self.last is None or self.gossip.num_steps < self.last:
                yield
            return
        while self.last is None or self.sampler.epoch < self.last:
            # A loader of place 1 has fetched more.
            waiting = collections.deque()
            for batch in self.sampler:
                waiting.append(batch)
                if len(waiting) > 1 + 2 * self.gossip.place:
                    yield waiting.popleft()
            yield from waiting

    def train(self):
        for _ in self.turns():
            step = self.gossip.num_steps
            if step == 5:
                self.end_here()
            self.make_step()
            if self.run is not None:
                self.run.log(self.losses[-1], samples=4)
            if step % 4 == 3:
                with self.gossip.global_average():
                    pass
            if self.case == "gossip" and step % 16 == 15 and not self.gossip.has_newcomers:
                with contextlib.suppress(gs.PeerLost):
                    self.save()
            time.sleep(0.005)
        if self.run is not None:
            self.run.finish()

    def make_step(self):
        self.optimizer.zero_grad()
        # The same batch in each step, so that the loss falls.
        loss = loss_of(self.net, 0, self.gossip.node, self.gossip.place)
        loss.backward()
        self.losses.append(loss.item())
        self.optimizer.step()

    def end_here(self):
        if self.sampler is not None:
            path = self.folder / f"ledger-{self.gossip.node}-{self.gossip.place}.json"
            path.write_text(json.dumps(self.sampler.ledger()))
        if self.role == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.role == "hang":
            time.sleep(600)

    def save(self):
        dcp.save(
            {"run": gs.dcp_state(self.gossip)},
            checkpoint_id=self.folder / f"saved-{self.gossip.node}",
        )

    def mean(self):
        with self.gossip.global_average():
            return local_sum(self.net)


def go_on_from_saved(rank, node):
    """Return whether a new wrapper has the values and the steps that the old one has saved."""
    rank.save()
    before = rank.gossip.num_steps, local_sum(rank.net)
    rank.gossip.finish()
    net, optimizer, _ = sharded(node)
    gossip = gs.ShardedGossip(net, optimizer, "base-k")
    state = {"run": gs.dcp_state(gossip)}
    dcp.load(state, checkpoint_id=rank.folder / f"saved-{gossip.node}")
    return (gossip.num_steps, local_sum(net)) == before


def track_momentum(rank):
    """Return the first and the last loss of another algorithm, with the members of today."""
    rank.gossip.finish()
    rank.optimizer = torch.optim.SGD(rank.net.parameters(), lr=0.05)
    rank.gossip = gs.ShardedGossip(
        rank.net, rank.optimizer, "base-k", algorithm="momentum_tracking", spread=True
    )
    rank.losses = []
    for _ in range(10):
        rank.make_step()
    return rank.losses[0], rank.losses[-1], rank.mean()


def load(folder, node):
    """Begin with other nodes from the mean."""
    net, _, _ = sharded(1 + node)
    optimizer = sgd(net.parameters())
    gossip = gs.ShardedGossip(net, optimizer, "base-k")
    state = {"run": gs.dcp_state(gossip, reshape="average")}
    dcp.load(state, checkpoint_id=folder / "saved-0")
    found = [local_sum(net)]
    for step in range(3):
        optimizer.zero_grad()
        loss_of(net, step, gossip.node, gossip.place).backward()
        optimizer.step()
    with gossip.global_average():
        found.append(local_sum(net))
    print(json.dumps(found), flush=True)


def main():
    torch.set_num_threads(1)
    folder, node, case = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    role = sys.argv[4].split(",")[int(os.environ["RANK"])]
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=600))
    place = f"file:{folder}"
    if role == "load":
        place += "/load"
    os.environ["GOSSAMER_RENDEZVOUS"] = place
    gs.initialize_dist(
        timeout_s=120,
        security="none",
        survive=True,
        join=place if role == "join" else "",
        nodes=2 if role == "load" else 3,
        node=node,
        silence_s=5.0,
    )
    if role == "load":
        return load(folder, node)
    net, optimizer, mesh = sharded(node)
    if role == "join":
        optimizer.param_groups[0]["lr"] = 1.0
    refused = list(refusals(net, optimizer, mesh))
    rank = Rank(folder, case, role, net, optimizer)
    rank.train()
    gossip = rank.gossip
    found = {
        "node": gossip.node,
        "place": gossip.place,
        "steps": gossip.num_steps,
        "mean": rank.mean(),
        "updates": sorted({int(state["step"]) for state in optimizer.state.values()}),
        "lr": optimizer.param_groups[0]["lr"],
        "members": gs.current_session().members,
        "sizes": rank.sizes,
        "changes": rank.changes,
        "admitted": rank.admitted,
        "losses": [rank.losses[0], rank.losses[-1]],
        "refused": refused,
        "ledger": rank.sampler.ledger() if rank.sampler is not None else [],
    }
    if case == "gossip":
        found["goes on"] = go_on_from_saved(rank, node)
    if case == "gradient_tracking":
        found["momentum_tracking"] = track_momentum(rank)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
