"""The cases of test_sharded.py, which the ranks of several nodes run one after the other.

Each case returns what rank 0 prints, as JSON.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from islands import (
    STEPS,
    Net,
    Rank,
    adamw,
    difference,
    full,
    loss_of,
    make,
    of_threads,
    replicas,
    sgd,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import gossamer as gs
from gossamer import islands as package_islands

F32, F64 = torch.float32, torch.float64


def worst(rank: Rank, optim_fn: Any = adamw, clip: Any = None, micros: int = 1, **how: Any) -> Any:
    """Return the largest difference from unsharded replicas that gossip, after any step."""
    kinds = {k: how.pop(k) for k in ("one_group", "fsdp") if k in how}
    options = {k: how.pop(k) for k in ("spread", "topology") if k in how}
    low = how.pop("low", None)
    sizes = {k: how[k] for k in ("tied", "hidden", "dtype") if k in how}
    want = replicas(
        rank.nodes, rank.places, optim_fn, clip=clip, micros=micros, low=low, **options, **sizes
    )
    net = rank.sharded(**sizes, **kinds)
    optimizer = optim_fn(net.parameters())
    options.setdefault("topology", "one-peer-exp")
    gossip = gs.ShardedGossip(net, optimizer, mesh=rank.mesh, bucket_size_in_mb=0.0005, **options)
    found = rank.worst(want, net, optimizer, clip=clip, micros=micros)
    gossip.finish()
    return found


def cases_of_equality(rank: Rank) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "sgd in float64", lambda: worst(rank, sgd)
    yield "adamw in float64", lambda: worst(rank)
    yield "sgd in float32", lambda: worst(rank, sgd, dtype=F32)
    yield "adamw in float32", lambda: worst(rank, dtype=F32)


def cases_of_eight(rank: Rank) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "float64", lambda: worst(rank)
    yield "float32", lambda: worst(rank, sgd, dtype=F32)


def cases_of_modules(rank: Rank) -> Iterator[tuple[str, Callable[[], Any]]]:
    def offload() -> dict[str, Any]:
        return {"offload_policy": CPUOffloadPolicy(pin_memory=False)}

    def by_columns(p: torch.nn.Parameter) -> Shard | None:
        return Shard(1) if p.ndim == 2 and p.shape[1] % 2 == 0 else None

    low = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=F32)}
    yield "one group", lambda: worst(rank, one_group=True)
    yield "tied weights", lambda: worst(rank, one_group=True, tied=True)
    yield "clipped", lambda: worst(rank, clip=0.3)
    yield "three micro-batches", lambda: worst(rank, micros=3)
    yield "bfloat16", lambda: worst(rank, dtype=F32, low=torch.bfloat16, fsdp=low)
    yield "offload", lambda: worst(rank, fsdp=offload())
    yield "kept gathered", lambda: worst(rank, fsdp={"reshard_after_forward": False})
    yield "shards of columns", lambda: worst(rank, fsdp={"shard_placement_fn": by_columns})
    yield "tensor parallelism", lambda: of_tensor_parallelism(rank)


def of_tensor_parallelism(rank: Rank) -> Any:
    mesh = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("node", "shard", "tp"))
    net = make(hidden=8)
    for block in net.blocks:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["shard"])
    fully_shard(net, mesh=mesh["shard"])
    optimizer = adamw(net.parameters())
    gossip = gs.ShardedGossip(net, optimizer, "one-peer-exp", mesh=mesh)
    want = replicas(2, 1, hidden=8)
    found = 0.0
    for t in range(STEPS):
        optimizer.zero_grad()
        # All ranks of a node have the same batch.
        loss_of(net, t, rank.node, 0).backward()
        optimizer.step()
        found = max(found, difference(full(net), want[t][rank.node]))
    with gossip.global_average() as distance:
        pass
    samples = samples_of(gossip)
    gossip.finish()
    return rank.largest(found), distance - distance_of(want[-1], rank.node), samples


def samples_of(gossip: gs.ShardedGossip) -> list[Any]:
    """Return the batches of each rank, in an epoch of 8 samples."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, list(gs.ElasticSampler(8, 2, gossip, shuffle=False)))
    return found


def distance_of(nodes: list[dict[str, torch.Tensor]], own: int) -> float:
    mean = mean_of(nodes)
    return sum((nodes[own][n] - mean[n]).square().sum().item() for n in mean) ** 0.5


def mean_of(nodes: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {n: torch.stack([node[n] for node in nodes]).mean(0) for n in nodes[0]}


def trained(
    rank: Rank,
    topology: Any = "one-peer-exp",
    steps: int = STEPS,
    dtype: torch.dtype = F64,
    **how: Any,
) -> tuple[torch.nn.Module, torch.optim.Optimizer, gs.ShardedGossip]:
    net = rank.sharded(dtype)
    optimizer = adamw(net.parameters())
    gossip = gs.ShardedGossip(net, optimizer, topology, mesh=rank.mesh, **how)
    for _ in rank.steps(net, optimizer, steps=range(steps)):
        pass
    return net, optimizer, gossip


def cases_of_means(rank: Rank) -> Iterator[tuple[str, Callable[[], Any]]]:
    def mean() -> Any:
        want = replicas(rank.nodes, rank.places)[-1]
        net, _, gossip = trained(rank)
        with torch.no_grad():
            before = loss_of(net, 50, rank.node, rank.place).item()
        with gossip.global_average() as distance, torch.no_grad():
            inside = loss_of(net, 50, rank.node, rank.place).item()
            apart = difference(full(net), mean_of(want))
        with torch.no_grad():
            after = loss_of(net, 50, rank.node, rank.place).item()
        gossip.finish()
        off = abs(distance - distance_of(want, rank.node))
        return {
            "mean": rank.largest(apart),
            "distance": rank.largest(off),
            "loss is another inside": rank.largest(abs(inside - before)) > 1e-6,
            "loss after": rank.largest(abs(after - before)),
        }

    def kept() -> float:
        net, _, gossip = trained(rank)
        with gossip.global_average(keep=True):
            inside = full(net)
        found = rank.largest(difference(full(net), inside))
        gossip.finish()
        return found

    def buffers() -> list[float]:
        net = rank.sharded()
        net.register_buffer("seen", torch.tensor([float(dist.get_rank())]))
        optimizer = adamw(net.parameters())
        gossip = gs.ShardedGossip(net, optimizer, mesh=rank.mesh)
        at_first = net.seen.item()
        net.seen.fill_(float(dist.get_rank()))
        with gossip.global_average():
            inside = net.seen.item()
        gossip.finish()
        return [rank.largest(at_first), inside, rank.largest(net.seen.item())]

    def samples() -> list[Any]:
        net = rank.sharded()
        gossip = gs.ShardedGossip(net, adamw(net.parameters()), mesh=rank.mesh)
        found = samples_of(gossip)
        gossip.finish()
        return found

    yield "samples", samples
    yield "mean", mean
    yield "kept mean", kept
    yield "buffers", buffers


def cases_of_algorithms(rank: Rank) -> Iterator[tuple[str, Callable[[], Any]]]:
    def like_the_drop_in(algorithm: Any, topology: str) -> float:
        how = {"algorithm": algorithm, "topology": topology}
        want = of_threads(rank.nodes, rank.places, **how)
        net = rank.sharded()
        optimizer = sgd(net.parameters())
        gossip = gs.ShardedGossip(net, optimizer, mesh=rank.mesh, **how)
        found = rank.worst(want, net, optimizer)
        gossip.finish()
        return found

    def hsdp(clip: float | None = None) -> float:
        ours, theirs = rank.sharded(apart=False), rank.sharded(apart=False, mesh=rank.mesh)
        optimizers = [adamw(net.parameters()) for net in (ours, theirs)]
        gossip = gs.ShardedGossip(ours, optimizers[0], mesh=rank.mesh, algorithm="allreduce")
        found = 0.0
        both = [
            rank.steps(net, own, clip=clip)
            for net, own in zip((ours, theirs), optimizers, strict=True)
        ]
        for _ in zip(*both, strict=True):
            found = max(found, difference(full(ours), full(theirs)))
        gossip.finish()
        return rank.largest(found)

    def mean_and_bytes(**how: Any) -> tuple[dict[str, torch.Tensor], float]:
        net, _, gossip = trained(rank, steps=20, dtype=F32, **how)
        with gossip.global_average():
            mean = full(net)
        sent = gossip.metrics()["bytes_sent"] / 20
        gossip.finish()
        return mean, sent

    def coded(codec: str, algorithm: Any = "gossip") -> list[float]:
        """Return how far a codec takes the mean from that of plain messages, and both bytes."""
        mean, sent = mean_and_bytes(codec=codec, algorithm=algorithm)
        plain, plain_sent = mean_and_bytes(algorithm=algorithm)
        return [rank.largest(difference(mean, plain)), sent, plain_sent]

    for name, (algorithm, topology) in ALGORITHMS.items():
        yield name, functools.partial(like_the_drop_in, algorithm, topology)
    yield "allreduce is hsdp", hsdp
    yield "allreduce is hsdp, clipped", lambda: hsdp(clip=0.3)
    for codec in ("bf16", "int8"):
        yield f"codec {codec}", functools.partial(coded, codec)
    yield "codec topk", lambda: coded("topk", {"name": "outer", "every": 2})


ALGORITHMS: dict[str, tuple[Any, str]] = {
    "gossip": ("gossip", "ring"),
    "outer": ({"name": "outer", "every": 3}, "ring"),
    "outer of pairs": ({"name": "outer", "every": 2, "kind": "noloco"}, "ring"),
    "late outer": ({"name": "outer", "every": 3, "kind": "diloco", "late": 2}, "ring"),
    "gradient_tracking": ("gradient_tracking", "ring"),
    "late_average": ({"name": "late_average", "every": 2}, "ring"),
    "relay": ("relay", "chain"),
    "choco": ({"name": "choco", "fraction": 1.0}, "static-ring"),
    "local": ("local", "ring"),
}


def cases_of_loops(rank: Rank) -> Iterator[tuple[str, Callable[[], Any]]]:
    def places() -> list[Any]:
        net = rank.sharded()
        optimizer = adamw(net.parameters())
        gossip = gs.ShardedGossip(net, optimizer, mesh=rank.mesh)
        found: list[Any] = [None] * dist.get_world_size()
        own = gossip.node, gossip.place, gossip.session.rank, gossip.session.world_size
        dist.all_gather_object(found, own)
        gossip.finish()
        return found

    def bytes_sent() -> list[float]:
        _, _, gossip = trained(rank, steps=4)
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, gossip.metrics()["bytes_sent"] / 4)
        gossip.finish()
        return found

    def loaded() -> Any:
        """Load the module's own state between two steps, which undoes the last step."""
        net, optimizer, gossip = trained(rank, steps=3)
        kept = {n: p.detach().clone() for n, p in net.state_dict().items()}
        for _ in rank.steps(net, optimizer, steps=range(3, 4)):
            pass
        with gossip.write_parameters():
            net.load_state_dict(kept)
        same = rank.largest(difference(full(net), {n: p.full_tensor() for n, p in kept.items()}))
        for _ in rank.steps(net, optimizer, steps=range(4, 6)):
            pass
        moved = difference(full(net), {n: p.full_tensor() for n, p in kept.items()})
        homes = zip(gossip._trainer._trained.shards, gossip._trainer._trained._homes, strict=True)
        at_home = all(shard.is_at(home) for shard, home in homes)
        gossip.finish()
        return same, moved > 1e-3, at_home

    def without_a_batch() -> list[float]:
        """Node 1 has no batch in the second step."""
        net, optimizer, gossip = trained(rank, steps=1)
        if rank.node == 0:
            for _ in rank.steps(net, optimizer, steps=range(1, 2)):
                pass
        else:
            before = full(net)
            gossip.finish_step()
            assert difference(full(net), before) > 0, "mixing has changed nothing"
        for _ in rank.steps(net, optimizer, steps=range(2, 4)):
            pass
        steps = gossip.metrics()["steps"]
        gossip.finish()
        return [rank.largest(steps), rank.largest(-steps)]

    def forgotten() -> float:
        """Keep the optimizer alone."""
        net = rank.sharded()
        optimizer = adamw(net.parameters())
        gs.ShardedGossip(net, optimizer, "one-peer-exp", mesh=rank.mesh)
        found = rank.worst(replicas(rank.nodes, rank.places), net, optimizer)
        vars(optimizer)["_gossamer_trainer"].finish()
        return found

    def timeline() -> Any:
        with tempfile.TemporaryDirectory() as own:
            folder = [own]
            dist.broadcast_object_list(folder)
            path = f"{folder[0]}/all.json"
            options = {"timeline": path, "timeline_steps": [1, 3]}
            _, _, gossip = trained(rank, options=options)
            gossip.finish()
            dist.barrier()
            with open(path, encoding="utf-8") as file:
                events = json.load(file)["traceEvents"]
            dist.barrier()
        return sorted({event["pid"] for event in events})

    yield "timeline", timeline
    yield "places", places
    yield "bytes", bytes_sent
    yield "loaded", loaded
    yield "without a batch", without_a_batch
    yield "forgotten", forgotten


def text_of(call: Callable[[], Any]) -> str:
    """Return the error of a call that is refused on all ranks."""
    try:
        call()
    except (gs.ConfigError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def gossip_of(rank: Rank, net: torch.nn.Module, optimizer: Any = None, **how: Any) -> Any:
    if optimizer is None:
        optimizer = sgd(net.parameters())
    how.setdefault("mesh", rank.mesh)
    return gs.ShardedGossip(net, optimizer, "one-peer-exp", **how)


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def cases_of_refused_modules(rank: Rank) -> Iterator[tuple[str, Callable[[], Any]]]:
    def parts_alone() -> Any:
        net = make()
        for block in net.blocks:
            fully_shard(block, mesh=rank.mesh["shard"])
        return gossip_of(rank, net)

    def special() -> Any:
        net = rank.sharded()
        net.head.weight._local_tensor.fsdp_pre_all_gather = None
        return gossip_of(rank, net)

    def pinned() -> Any:
        net = rank.sharded()
        net._get_fsdp_state()._fsdp_param_group.fsdp_params[0].pin_memory = True
        return gossip_of(rank, net)

    def on_meta() -> Any:
        with torch.device("meta"):
            net = Net()
        fully_shard(net, mesh=rank.mesh["shard"])
        return gossip_of(rank, net)

    def sum_for_mean() -> Any:
        def add(out: torch.Tensor, given: torch.Tensor, *_: Any) -> None:
            out.copy_(given.sum())

        with replaced(dist, "reduce_scatter_tensor", add):
            return gossip_of(rank, rank.sharded())

    def old() -> Any:
        with replaced(package_islands, "_VERSION", (2, 5)):
            return gossip_of(rank, rank.sharded())

    def before_sharding() -> Any:
        net = make()
        optimizer = sgd(net.parameters())
        fully_shard(net, mesh=rank.mesh["shard"])
        return gossip_of(rank, net, optimizer)

    flat = init_device_mesh("cpu", (4,), mesh_dim_names=("all",))
    alone = init_device_mesh("cpu", (4, 1), mesh_dim_names=("rank", "alone"))["alone"]
    ddp = torch.nn.parallel.DistributedDataParallel
    yield "replicates", lambda: gossip_of(rank, rank.sharded(mesh=rank.mesh))
    yield "several nodes", lambda: gossip_of(rank, rank.sharded(mesh=flat))
    yield "alone", lambda: gossip_of(rank, rank.sharded(mesh=alone))
    yield "ddp", lambda: gossip_of(rank, ddp(make()))
    yield "whole", parts_alone
    yield "special", special
    yield "pinned", pinned
    yield "meta", on_meta
    yield "sum", sum_for_mean
    yield "old torch", old
    yield "bfloat16 parameters", lambda: gossip_of(rank, rank.sharded(torch.bfloat16))
    yield "optimizer", before_sharding
    yield "models", lambda: gossip_of(rank, rank.sharded(hidden=7 + rank.node, apart=False))


def cases_of_refused_options(rank: Rank) -> Iterator[tuple[str, Callable[[], Any]]]:
    def given(**how: Any) -> Callable[[], Any]:
        return lambda: gossip_of(rank, rank.sharded(), **how)

    yield "codecs", given(codec="fp32" if rank.place == 0 else "bf16")
    yield "no mesh", given(mesh=None)
    yield "dimension", given(nodes="replicate")
    yield "small mesh", given(mesh=rank.mesh["shard"], nodes="shard")
    yield "node_gossip", given(algorithm="node_gossip")
    yield "async_gossip", given(algorithm={"name": "async_gossip"})
    yield "grad_clip", given(options={"grad_clip": "global", "grad_clip_norm": 1.0})
    yield "nonfinite", given(options={"nonfinite": "skip"})


def cases_of_refused_steps(rank: Rank) -> Iterator[tuple[str, Callable[[], Any]]]:
    def gathered() -> Any:
        net, optimizer, _ = trained(rank, steps=2)
        net.set_reshard_after_backward(False)
        list(rank.steps(net, optimizer, steps=range(2, 3)))

    def other_parameters() -> Any:
        net, optimizer, _ = trained(rank, steps=2)
        values = {n: p.detach().clone() for n, p in net.state_dict().items()}
        net.load_state_dict(values, assign=True)
        list(rank.steps(net, optimizer, steps=range(2, 3)))

    def scaled() -> Any:
        net, optimizer, _ = trained(rank, steps=2)
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(loss_of(net, 2, rank.node, rank.place)).backward()
        scaler.step(optimizer)

    def thawed() -> Any:
        net = rank.sharded()
        net.head.weight.requires_grad_(False)
        optimizer = sgd(net.parameters())
        gossip = gossip_of(rank, net, optimizer)
        net.head.weight.requires_grad_(True)
        list(rank.steps(net, optimizer, steps=range(2)))
        gossip.finish()

    yield "gathered", gathered
    yield "replaced", other_parameters
    yield "scaler", scaled
    yield "thawed", thawed


def cases_of_spread(rank: Rank) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "spread", lambda: worst(rank, spread=True)
    yield "ring", lambda: worst(rank, topology="ring")


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    gs.initialize_dist(timeout_s=60)
    size = dist.get_world_size()
    groups: list[tuple[Rank, Any, bool]] = []
    if size == 4:
        rank = Rank(2, 2)
        groups = [
            (rank, make_cases, refused)
            for make_cases, refused in (
                (cases_of_equality, False),
                (cases_of_modules, False),
                (cases_of_means, False),
                (cases_of_algorithms, False),
                (cases_of_loops, False),
                (cases_of_refused_modules, True),
                (cases_of_refused_options, True),
                (cases_of_refused_steps, True),
            )
        ]
    else:
        groups = [
            (Rank(4, 2), cases_of_eight, False),
            (Rank(4, 2), cases_of_spread, False),
            (Rank(2, 4), cases_of_eight, False),
        ]
    for rank, make_cases, refused in groups:
        for name, case in make_cases(rank):
            try:
                found = text_of(case) if refused else case()
            except BaseException:
                print(f"case {name} on rank {dist.get_rank()}", file=sys.stderr)
                traceback.print_exc()
                raise
            if dist.get_rank() == 0:
                print(json.dumps([f"{rank.nodes}x{rank.places}", name, found]), flush=True)
    gs.finalize_dist()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
