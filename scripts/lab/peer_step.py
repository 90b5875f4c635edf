#!/usr/bin/env python3
"""The same training step in other frameworks, timed: the other side of `gossamer bench step`.

    torchrun --nproc-per-node 2 scripts/lab/peer_step.py --engine decent-dp --model mlp
    torchrun --nproc-per-node 2 scripts/lab/peer_step.py --engine ddp --model gpt --losses
    scripts/hosts.sh mpirun build/python-venv/bin/python scripts/lab/peer_step.py --engine ddp-bf16

Engines: gossamer (the Python package; build/python/package must be on PYTHONPATH), decent-dp (PyPI), ddp (PyTorch's DistributedDataParallel), ddp-bf16 (the same, with gradients sent as bfloat16),
local (no communication). gloo on the CPU.
Models, initial values and data follow from a seed as apps/lab/bench/reference_task.hpp says, so the losses must be those of
gossamer's `local` (local), `gossip` (decent-dp). Prints one JSON line with the keys of `gossamer bench step`.
Needs torch, decent-dp, numpy: scripts/test_python.sh --set-up installs them.
"""
import argparse
import json
import math
import os
import resource
import statistics
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

POOL = 8
SEED = 1234
VOCABULARY, CONTEXT, WIDTH, LAYERS, HEADS = 256, 128, 384, 6, 6


# ---- numbers that follow from a seed -----------------------------------------------------------

def mix(z):
    with np.errstate(over="ignore"):
        z = np.asarray(z, np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def bits(seed, stream, index):
    with np.errstate(over="ignore"):
        return mix(mix(np.uint64((seed << 32) + stream)) + np.asarray(index, np.uint64))


def symmetric(seed, stream, index):
    fraction = (bits(seed, stream, index) >> np.uint64(40)).astype(np.float64) / 2.0**24
    return 2.0 * fraction - 1.0


# ---- models ------------------------------------------------------------------------------------

class Perceptron(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(),
                         nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))

    @staticmethod
    def initial(name, parameter, fan_in):
        return 1.0 / math.sqrt(fan_in), None


class BasicBlock(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.stride, self.extra = stride, outer - inner

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        if self.stride > 1:
            x = x[:, :, ::self.stride, ::self.stride]
        if self.extra:
            x = F.pad(x, (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2))
        return torch.relu(x + y)


class ResNet20(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        widths = [16] * 3 + [32] * 3 + [64] * 3
        self.blocks = nn.Sequential(*[BasicBlock(before, after, 2 if after > before else 1)
                                      for before, after in zip([16] + widths, widths)])
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        return self.fc(self.blocks(torch.relu(self.bn(self.conv(x)))).mean((2, 3)))

    @staticmethod
    def initial(name, parameter, fan_in):
        if parameter.dim() == 4:
            return math.sqrt(6.0 / (parameter.shape[1] * 9)), None
        if name.startswith("fc."):
            return 0.125, None
        return None, 1.0 if name.endswith("weight") else 0.0


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = [part.view(batch, length, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(x).split(width, 2)]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc, self.proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.proj(F.gelu(self.fc(x)))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.ln2, self.mlp = nn.LayerNorm(width), FeedForward(width)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Gpt(nn.Module):
    """gossamer's gpt (apps/models/gpt.cpp)."""

    def __init__(self, layers=LAYERS, width=WIDTH, heads=HEADS, context=CONTEXT):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
        self.layers = nn.Sequential(*[Layer(width, heads) for _ in range(layers)])
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.ln(self.layers(x))).flatten(0, 1)

    @staticmethod
    def initial(name, parameter, fan_in):
        if parameter.dim() < 2:
            return None, 1.0 if name.endswith("weight") else 0.0
        bound = 0.02 * math.sqrt(3.0)
        return (bound / math.sqrt(2 * LAYERS) if name.endswith("proj.weight") else bound), None


MODELS = {"mlp": (Perceptron, 64), "resnet20": (ResNet20, 32), "gpt": (Gpt, 4)}


def make_model(name, seed):
    model = MODELS[name][0]()
    fan_in = 1
    for place, (key, parameter) in enumerate(model.named_parameters()):
        if parameter.dim() > 1:
            fan_in = parameter.shape[1]
        bound, constant = model.initial(key, parameter, fan_in)
        if bound is None:
            parameter.data.fill_(constant)
            continue
        values = bound * symmetric(seed, 1 + place, np.arange(parameter.numel()))
        parameter.data.copy_(torch.from_numpy(values.astype(np.float32)).view_as(parameter))
    return model


def make_batches(name, seed, rank, batch_size):
    rows = np.arange(POOL * batch_size)
    if name == "gpt":
        drawn = bits(seed, 1000 + rank, rows[:, None] * 200 + np.arange(CONTEXT + 1))
        text = np.empty(drawn.shape, np.int64)
        text[:, 0] = drawn[:, 0] % np.uint64(VOCABULARY)
        for place in range(CONTEXT):
            coin = (drawn[:, place + 1] & np.uint64(1)).astype(np.int64)
            text[:, place + 1] = (5 * text[:, place] + 7 + coin) % VOCABULARY
        inputs, labels = torch.from_numpy(text[:, :-1].copy()), torch.from_numpy(text[:, 1:].copy())
        return [(inputs[at:at + batch_size], labels[at:at + batch_size].flatten())
                for at in range(0, len(rows), batch_size)]
    shape = (784,) if name == "mlp" else (3, 32, 32)
    numel, noise = math.prod(shape), math.sqrt(3.0)
    labels = (bits(seed, 2000 + rank, rows) % np.uint64(10)).astype(np.int64)
    patterns = np.stack([symmetric(seed, 900 + c, np.arange(numel)) for c in range(10)])
    pixels = (noise * symmetric(seed, 1000 + rank, rows[:, None] * numel + np.arange(numel))
              + 0.15 * noise * patterns[labels])
    inputs = torch.from_numpy(pixels.astype(np.float32)).view(-1, *shape)
    labels = torch.from_numpy(labels)
    return [(inputs[at:at + batch_size].contiguous(), labels[at:at + batch_size].contiguous())
            for at in range(0, len(rows), batch_size)]


# ---- engines -----------------------------------------------------------------------------------

def make_optimizer(parameters):
    # decent-dp 0.2.3 calls a method that torch 2.11 has renamed; no number depends on it.
    new = getattr(torch.optim.Optimizer, "_accelerator_graph_capture_health_check", None)
    if new and not hasattr(torch.optim.Optimizer, "_cuda_graph_capture_health_check"):
        torch.optim.Optimizer._cuda_graph_capture_health_check = new
    from decent_dp.optim import AccumAdamW
    return AccumAdamW(parameters, lr=3e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1, accum_iter=4)


def do_nothing():
    pass


def make_engine(args):
    """The model, what wraps it, what follows a backward pass, and what waits for the last messages."""
    model = make_model(args.model, SEED)
    if args.engine == "decent-dp":
        from decent_dp.ddp import DecentralizedDataParallel
        from loguru import logger
        logger.disable("decent_dp")
        net = DecentralizedDataParallel(
            model, lambda named: make_optimizer([p for _, p in named]), None,
            topology=args.topology, bucket_size_in_mb=args.bucket_mb)

        def settle():
            for work in net._comm_ops:
                if work is not None:
                    work.wait()

        return model, net, do_nothing, settle
    if args.engine == "gossamer":
        import gossamer
        net = gossamer.DecentralizedDataParallel(
            model, make_optimizer, args.topology, bucket_size_in_mb=args.bucket_mb)
        return model, net, do_nothing, net.drain
    net = model
    if args.engine != "local":
        net = nn.parallel.DistributedDataParallel(
            model, bucket_cap_mb=args.bucket_mb, broadcast_buffers=False, gradient_as_bucket_view=True)
    if args.engine == "ddp-bf16":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        net.register_comm_hook(None, default_hooks.bf16_compress_hook)
    optimizer = make_optimizer(model.parameters())

    def update():
        optimizer.step()
        optimizer.zero_grad()

    return model, net, update, do_nothing


# ---- measurement -------------------------------------------------------------------------------

def measure(args, rank):
    torch.set_num_threads(args.threads)
    batch_size = args.batch_size or MODELS[args.model][1]
    batches = make_batches(args.model, SEED, rank, batch_size)
    model, net, after_backward, settle = make_engine(args)
    net.train()
    rows, losses = [], []
    for step in range(max(args.warmup, 3) + args.steps):
        inputs, labels = batches[step % POOL]
        begin = time.perf_counter()
        loss = F.cross_entropy(net(inputs), labels)
        middle = time.perf_counter()
        loss.backward()
        after_backward()
        end = time.perf_counter()
        losses.append(loss.detach())
        if step >= max(args.warmup, 3):
            rows.append((end - begin, middle - begin, end - middle))
    settle()
    total, forward, backward = (1e3 * np.array(column) for column in zip(*rows))
    return {"step_ms": float(np.median(total)), "mean_ms": float(np.mean(total)),
            "p10_ms": float(np.percentile(total, 10)), "p90_ms": float(np.percentile(total, 90)),
            "forward": float(np.median(forward)),
            "backward_and_update": float(np.median(backward)),
            "params": sum(p.numel() for p in model.parameters()), "batch_size": batch_size,
            "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0,
            "losses": [float(loss) for loss in losses]}


def join_group(args):
    """Returns rank, size, and a function that gathers the results of all ranks."""
    if args.engine == "gossamer":
        import gossamer
        rank, world = gossamer.initialize_dist()
        session = gossamer.current_session()
        return rank, world, lambda own: [json.loads(text) for text in
                                         session.all_gather(json.dumps(own))]
    join_gloo()

    def gather(own):
        ranks = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, own)
        return ranks

    return dist.get_rank(), dist.get_world_size(), gather


def join_gloo():
    """Torchrun says where the ranks find each other. Under mpirun they meet on the first host of
    scripts/hosts.sh, or on this machine."""
    for rank, world in [("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")]:
        if "RANK" in os.environ or rank not in os.environ:
            continue
        os.environ["RANK"], os.environ["WORLD_SIZE"] = os.environ[rank], os.environ[world]
        hosts = "GOSSAMER_HOSTS" in os.environ
        os.environ.setdefault("MASTER_ADDR", "host0" if hosts else "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "eth0" if hosts else "lo")
    dist.init_process_group("gloo")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["gossamer", "decent-dp", "ddp", "ddp-bf16", "local"], default="decent-dp")
    parser.add_argument("--model", choices=list(MODELS), default="mlp")
    parser.add_argument("--topology", default="ring")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=0)
    parser.add_argument("--bucket-mb", type=float, default=25)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--losses", action="store_true")
    args = parser.parse_args()
    rank, world, gather = join_group(args)
    ranks = gather(measure(args, rank))
    if rank == 0:
        mean = {key: statistics.mean(r[key] for r in ranks)
                for key in ["step_ms", "mean_ms", "p10_ms", "p90_ms", "forward",
                            "backward_and_update"]}
        line = {"engine": args.engine, "model": args.model, "params": ranks[0]["params"],
                "world": world, "topology": args.topology if args.engine in ("gossamer", "decent-dp") else None,
                "optim": "accum-adamw", "optim_impl": "decent-dp", "accum_iter": 4, "batch_size": ranks[0]["batch_size"],
                "bucket_mb": args.bucket_mb, "threads": args.threads, "timed_steps": args.steps,
                **{key: round(mean[key], 3) for key in ["step_ms", "mean_ms", "p10_ms", "p90_ms"]},
                "samples_per_s": round(world * ranks[0]["batch_size"] * 1e3 / mean["step_ms"], 1),
                "peak_rss_mb": [round(r["rss"]) for r in ranks],
                "breakdown_ms": {key: round(mean[key], 3)
                                 for key in ["forward", "backward_and_update"]}}
        if args.losses:
            line["losses"] = [round(float(v), 6) for v in np.mean([r["losses"] for r in ranks], 0)]
        print(json.dumps(line), flush=True)
    if args.engine == "gossamer":
        return
    dist.barrier()
    # gloo's threads now and then abort the interpreter when it ends in the ordinary way.
    os._exit(0)


if __name__ == "__main__":
    main()
