"""What the ranks of the tests of sharded modules run, started by test_sharded.py or torchrun.

The sizes of the model are odd, so that shards are uneven, and some are empty.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import gossamer as gs
from gossamer.compat.ddp import DistributedDataParallel

STEPS = 6
Values = dict[str, torch.Tensor]
OptimFn = Callable[[Any], torch.optim.Optimizer]


class Block(torch.nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(dim)
        self.up = torch.nn.Linear(dim, hidden)
        self.down = torch.nn.Linear(hidden, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Net(torch.nn.Module):
    """A model whose `scale` has one row, so that its shard on all places but the first is empty."""

    def __init__(self, hidden: int = 7, tied: bool = False) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 6)
        self.blocks = torch.nn.ModuleList(Block(6, hidden) for _ in range(2))
        self.scale = torch.nn.Parameter(torch.ones(1, 6))
        self.head = torch.nn.Linear(6, 11, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x * self.scale)


def make(dtype: torch.dtype = torch.float64, **sizes: Any) -> Net:
    torch.manual_seed(7)
    return Net(**sizes).to(dtype)


def loss_of(model: torch.nn.Module, step: int, node: int, place: int, micro: int = 0) -> Any:
    generator = torch.Generator().manual_seed(100000 * micro + 1000 * step + 10 * node + place)
    device = next(model.parameters()).device
    x, y = (torch.randint(0, 11, (4, 5), generator=generator).to(device) for _ in range(2))
    return torch.nn.functional.cross_entropy(model(x).float().flatten(0, 1), y.flatten())


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-2)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)


def partner(topology: str, node: int, size: int, k: int) -> tuple[int, float]:
    """Return whom a node meets in a round, and the weight that it keeps; itself: nobody."""
    for ranks, weight in gs.topology(topology, size).rounds(k + 1)[k]:
        if node in ranks:
            return next((other for other in ranks if other != node), node), weight
    raise AssertionError(f"node {node} is missing in round {k}")


def mixed(
    sent: list[list[torch.Tensor]], own: int, topology: str, k: int, places: int, spread: bool
) -> Iterator[torch.Tensor]:
    """Give the parameters of a node that mixes with its partner; `spread`: at every place."""
    for values in zip(*sent, strict=True):
        result = values[own].clone()
        for place, piece in enumerate(result.chunk(places)):
            peer, weight = partner(topology, own, len(sent), k + (place if spread else 0))
            if peer != own:
                other = values[peer].chunk(places)[place]
                piece.copy_(values[own].chunk(places)[place] * weight + other * (1 - weight))
        yield result


@functools.cache
def replicas(
    nodes: int,
    places: int,
    optim_fn: OptimFn = adamw,
    *,
    dtype: torch.dtype = torch.float64,
    clip: float | None = None,
    micros: int = 1,
    low: torch.dtype | None = None,
    spread: bool = False,
    topology: str = "one-peer-exp",
    **sizes: Any,
) -> list[list[Values]]:
    """Return all nodes' parameters after every step of one unsharded replica for each node."""
    nets = [make(dtype, **sizes) for _ in range(nodes)]
    optimizers = [optim_fn(net.parameters()) for net in nets]
    sent: list[list[torch.Tensor]] = []
    found = []
    for t in range(STEPS):
        for i, net in enumerate(nets):
            total = [torch.zeros_like(p) for p in net.parameters()]
            for place in range(places):
                for micro in range(micros):
                    own = net if low is None else copy.deepcopy(net).to(low)
                    own.zero_grad()
                    loss_of(own, t, i, place, micro).backward()
                    for g, p in zip(total, own.parameters(), strict=True):
                        g += p.grad.to(dtype) / places
            for g, p in zip(total, net.parameters(), strict=True):
                p.grad = g
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        with torch.no_grad():
            for i, net in enumerate(nets):
                if sent:
                    values = mixed(sent, i, topology, t - 1, places, spread)
                    for p, value in zip(net.parameters(), values, strict=True):
                        p.copy_(value)
                optimizers[i].step()
            sent = [[p.detach().clone() for p in net.parameters()] for net in nets]
        found.append([{n: p.detach().clone() for n, p in net.named_parameters()} for net in nets])
    return found


def of_threads(nodes: int, places: int, optim_fn: OptimFn = sgd, **how: Any) -> list[list[Values]]:
    """Return what replicas() does, by the drop-in for DDP with a thread for each node."""

    def work() -> list[Values]:
        node = gs.current_session().rank
        net = Net().to(torch.float64)
        for p, value in zip(net.parameters(), start.parameters(), strict=True):
            p.data.copy_(value)
        model = DistributedDataParallel(net, **how)
        optimizer = optim_fn(model.parameters())
        found = []
        for t in range(STEPS):
            optimizer.zero_grad()
            torch.stack([loss_of(model, t, node, k) for k in range(places)]).mean().backward()
            optimizer.step()
            found.append({n: p.detach().clone() for n, p in net.named_parameters()})
        return found

    start = make()
    # It says that there are more ranks than these threads.
    os.environ.pop("WORLD_SIZE", None)
    return [list(step) for step in zip(*gs.run_threads(nodes, work), strict=True)]


def full(net: torch.nn.Module) -> Values:
    return {
        n: (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().cpu().clone()
        for n, p in net.named_parameters()
    }


def difference(one: Values, other: Values) -> float:
    return max((one[n] - other[n]).abs().max().item() for n in one)


class Rank:
    """A rank of `nodes` nodes of `places` places."""

    def __init__(self, nodes: int, places: int, device: str = "cpu") -> None:
        self.nodes, self.places = nodes, places
        self.mesh = init_device_mesh(device, (nodes, places), mesh_dim_names=("node", "shard"))
        self.node, self.place = divmod(dist.get_rank(), places)

    def largest(self, value: float) -> float:
        both = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(both, op=dist.ReduceOp.MAX)
        return both.item()

    def sharded(
        self,
        dtype: torch.dtype = torch.float64,
        *,
        one_group: bool = False,
        mesh: Any = None,
        apart: bool = True,
        fsdp: Any = None,
        **sizes: Any,
    ) -> torch.nn.Module:
        """Return a sharded model; nodes begin with other values where they are `apart`."""
        from torch.distributed.fsdp import fully_shard

        net = make(dtype, **sizes)
        if apart and self.node > 0:
            with torch.no_grad():
                for p in net.parameters():
                    p.add_(1.0)
        inner = self.mesh["shard"] if mesh is None else mesh
        for block in [] if one_group else net.blocks:
            fully_shard(block, mesh=inner, **(fsdp or {}))
        fully_shard(net, mesh=inner, **(fsdp or {}))
        return net

    def steps(
        self,
        net: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        clip: float | None = None,
        micros: int = 1,
        steps: Any = range(STEPS),
    ) -> Iterator[int]:
        for t in steps:
            optimizer.zero_grad()
            for micro in range(micros):
                net.set_requires_gradient_sync(micro == micros - 1)  # type: ignore[operator]
                loss_of(net, t, self.node, self.place, micro).backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
            yield t

    def worst(
        self, want: list[list[Values]], net: torch.nn.Module, optimizer: Any, **how: Any
    ) -> float:
        """Return the largest difference from the replicas after any step, on any rank."""
        found = 0.0
        for t in self.steps(net, optimizer, **how):
            found = max(found, difference(full(net), want[t][self.node]))
        return self.largest(found)
