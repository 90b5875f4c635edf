#!/usr/bin/env python3
"""What PyTorch does on a GPU: the other side of `gossamer bench kernel --device cuda` and of a gpt's training.

    python3 scripts/lab/gpu_peer.py sweep                    # mixing and optimizer of 200 buckets of 25 MiB
    python3 scripts/lab/gpu_peer.py train --batch 32         # tokens per second of a gpt with fused AdamW, bf16 autocast
    python3 scripts/lab/gpu_peer.py train --batch 32 --compile
    python3 scripts/lab/gpu_peer.py train --batch 32 --gossamer                # the same with gossamer's Python package
    python3 scripts/lab/gpu_peer.py ddp --batch 16           # DDP of two processes that share the GPU, with each of its hooks
    python3 scripts/lab/gpu_peer.py sweep --device cpu --mib 1 --buckets 3      # does the script work?

`sweep` times, in turn within one run: copying 1 GiB; torch.optim.AdamW(fused=True); and what decent-dp does for a bucket
between two exchanges, as its `AccumAdamW` does it with torch._foreach_* calls: mixing, decay, accumulation, moments,
update, preparing the next exchange. Medians over rounds. Prints one JSON line. Needs torch and numpy.

`ddp` trains the gpt by DistributedDataParallel over NCCL (on processors: gloo), with all-reduce in float32, with the hook
that sends bfloat16, and with PowerSGD of rank 4. NCCL takes each process for a host of its own, so messages go through
sockets. Prints medians over the steps, the slowest process counts.
"""
import argparse
import json
import os
import socket
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

from peer_step import VOCABULARY, Gpt


class Clock:
    """Seconds of a device's work, the host waiting at both ends."""

    def __init__(self, device):
        self.device = device

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def time(self, work):
        self.synchronize()
        begin = time.perf_counter()
        work()
        self.synchronize()
        return time.perf_counter() - begin


# ---- mixing and update -------------------------------------------------------------------------

class AccumBucket:
    """A bucket of decent-dp with AccumAdamW, all parameters in one foreach list."""

    def __init__(self, numel, tensors, device, accum_iter):
        self.block = torch.randn(numel, device=device) * 0.02
        self.inbox = torch.randn(numel, device=device) * 0.02
        self.gradient = torch.randn(numel, device=device) * 0.01
        self.p, self.g = ([flat.narrow(0, i * (numel // tensors), numel // tensors) for i in range(tensors)]
                          for flat in (self.block, self.gradient))
        self.m, self.v, self.accumulated = ([torch.zeros_like(x) for x in self.p] for _ in range(3))
        self.accum_iter = accum_iter
        self.step_count = 0

    @torch.no_grad()
    def step(self, lr=1e-6, beta1=0.9, beta2=0.999, eps=1e-8, decay=0.1, keep=0.5):
        self.block.mul_(keep)
        self.block.add_(self.inbox, alpha=1.0 - keep)
        self.step_count += 1
        t = (self.step_count - 1) // self.accum_iter + 1
        torch._foreach_mul_(self.p, 1.0 - lr * decay)
        torch._foreach_add_(self.accumulated, self.g, alpha=1.0 / self.accum_iter)
        m = torch._foreach_mul(self.m, beta1)
        torch._foreach_add_(m, self.g, alpha=1.0 - beta1)
        v = torch._foreach_mul(self.v, beta2)
        torch._foreach_addcmul_(v, self.g, self.g, 1.0 - beta2)
        torch._foreach_sqrt_(v)
        torch._foreach_div_(v, (1.0 - beta2**t) ** 0.5)
        torch._foreach_add_(v, eps)
        torch._foreach_addcdiv_(self.p, m, v, -lr / (1.0 - beta1**t))
        if self.step_count % self.accum_iter == 0:
            torch._foreach_lerp_(self.m, self.accumulated, 1.0 - beta1)
            torch._foreach_mul_(self.v, beta2)
            torch._foreach_addcmul_(self.v, self.accumulated, self.accumulated, 1.0 - beta2)
            torch._foreach_zero_(self.accumulated)
        self.inbox.copy_(self.block)
        self.inbox.mul_(0.5)


def sweep(arguments, device):
    clock = Clock(device)
    tensors = arguments.tensors
    numel = int(arguments.mib * 2**20) // 4 // tensors * tensors
    copied = [torch.zeros(arguments.copy_mib * 2**20, dtype=torch.uint8, device=device) for _ in range(2)]

    def copy_all():
        for _ in range(8):
            copied[1].copy_(copied[0])

    buckets = [AccumBucket(numel, tensors, device, arguments.accum_iter) for _ in range(arguments.buckets)]
    foreach, copies = [], []
    for bucket in buckets:
        bucket.step()
    for _ in range(arguments.rounds * arguments.accum_iter):
        foreach.append(clock.time(lambda: [bucket.step() for bucket in buckets]) / len(buckets))
        copies.append(clock.time(copy_all) / (16 * copied[0].nbytes))
    del buckets

    parameters = [nn.Parameter(torch.randn(numel // tensors, device=device) * 0.02)
                  for _ in range(arguments.buckets * tensors)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter) * 0.01
    adamw = torch.optim.AdamW(parameters, lr=1e-6, weight_decay=0.1, fused=True)
    adamw.step()
    fused = []
    for _ in range(arguments.rounds * arguments.accum_iter):
        fused.append(clock.time(adamw.step) / arguments.buckets)
        copies.append(clock.time(copy_all) / (16 * copied[0].nbytes))

    byte_s = statistics.median(copies)
    # Read p, g, m and v, write p, m and v.
    fused_least = 28 * numel * byte_s
    return {"bucket_mib": numel * 4 / 2**20, "buckets": arguments.buckets, "tensors_per_bucket": tensors,
            "copy_GBps": 1e-9 / byte_s,
            "decent_dp_passes_ms": 1e3 * statistics.median(foreach),
            "fused_adamw_ms": 1e3 * statistics.median(fused),
            "fused_adamw_ratio_to_28_bytes": statistics.median(fused) / fused_least}


# ---- training ----------------------------------------------------------------------------------

def make_gpt(arguments, device):
    torch.manual_seed(1)
    model = Gpt(arguments.layers, arguments.width, arguments.heads, arguments.length).to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)


def train(arguments, device):
    clock = Clock(device)
    model, adamw = make_gpt(arguments, device)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    run = torch.compile(model) if arguments.compile else model
    if arguments.gossamer:
        import gossamer

        gossamer.initialize_dist()
        run = gossamer.DecentralizedDataParallel(run, adamw)
    pool = [torch.randint(VOCABULARY, (arguments.batch, arguments.length + 1)) for _ in range(8)]
    if device.type == "cuda":
        pool = [batch.pin_memory() for batch in pool]

    def step(number):
        batch = pool[number % len(pool)].to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16):
            loss = F.cross_entropy(run(batch[:, :-1]), batch[:, 1:].flatten())
        loss.backward()
        if not arguments.gossamer:
            adamw.step()
            adamw.zero_grad(set_to_none=True)

    for number in range(arguments.warmup):
        step(number)
    seconds = [clock.time(lambda: [step(number) for number in range(arguments.steps)]) / arguments.steps
               for _ in range(arguments.rounds)]
    step_s = statistics.median(seconds)
    result = {"parameters": num_parameters, "batch": arguments.batch, "length": arguments.length,
              "compile": arguments.compile, "gossamer": arguments.gossamer, "step_ms": 1e3 * step_s,
              "tokens_per_s": arguments.batch * arguments.length / step_s}
    if device.type == "cuda":
        result["peak_memory_GiB"] = torch.cuda.max_memory_allocated(device) / 2**30
    return result


# ---- PyTorch's own exchange --------------------------------------------------------------------

def hook_of(name):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if name == "bf16":
        return None, default_hooks.bf16_compress_hook
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
    return state, powerSGD_hook.powerSGD_hook


def ddp_steps(rank, arguments, hook, port, results):
    """Trains as one process of several, and puts the seconds of its steps into `results`."""
    device = torch.device(arguments.device)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NCCL_HOSTID": f"gpu-peer-{rank}"}
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", rank=rank,
                                         world_size=arguments.ranks)
    clock = Clock(device)
    model, adamw = make_gpt(arguments, device)
    ddp = nn.parallel.DistributedDataParallel(model)
    if hook != "float32":
        ddp.register_comm_hook(*hook_of(hook))
    tokens = torch.randint(VOCABULARY, (arguments.batch, arguments.length + 1), device=device)

    def step():
        with torch.autocast(device.type, torch.bfloat16):
            loss = F.cross_entropy(ddp(tokens[:, :-1]), tokens[:, 1:].flatten())
        loss.backward()
        adamw.step()
        adamw.zero_grad(set_to_none=True)

    for _ in range(arguments.warmup):
        step()
    results.put([clock.time(step) for _ in range(arguments.steps)])
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def ddp(arguments, device):
    spawning = torch.multiprocessing.get_context("spawn")
    figures = {}
    for hook in ("float32", "bf16", "powersgd"):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        results = spawning.SimpleQueue()
        torch.multiprocessing.spawn(ddp_steps, (arguments, hook, port, results), arguments.ranks)
        slowest = max(statistics.median(results.get()) for _ in range(arguments.ranks))
        figures[f"{hook}_step_ms"] = 1e3 * slowest
    return {"ranks": arguments.ranks, "batch": arguments.batch, "length": arguments.length, **figures}


def add_gpt_arguments(command):
    command.add_argument("--device", default=argparse.SUPPRESS)
    command.add_argument("--layers", type=int, default=11)
    command.add_argument("--width", type=int, default=960)
    command.add_argument("--heads", type=int, default=15)
    command.add_argument("--length", type=int, default=1024)
    command.add_argument("--batch", type=int, default=32)
    command.add_argument("--warmup", type=int, default=5)
    command.add_argument("--steps", type=int, default=10)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("sweep")
    command.add_argument("--device", default=argparse.SUPPRESS)
    command.add_argument("--mib", type=float, default=25.0, help="of a bucket's float32 parameters")
    command.add_argument("--buckets", type=int, default=200)
    command.add_argument("--tensors", type=int, default=4, help="parameters of a bucket")
    command.add_argument("--accum-iter", type=int, default=4)
    command.add_argument("--rounds", type=int, default=5)
    command.add_argument("--copy-mib", type=int, default=1024)
    command.set_defaults(run=sweep)
    command = commands.add_parser("train")
    add_gpt_arguments(command)
    command.add_argument("--compile", action="store_true")
    command.add_argument("--gossamer", action="store_true", help="its Python package mixes and updates, in a world of one")
    command.add_argument("--rounds", type=int, default=3)
    command.set_defaults(run=train)
    command = commands.add_parser("ddp")
    add_gpt_arguments(command)
    command.add_argument("--ranks", type=int, default=2)
    command.set_defaults(run=ddp)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    result = arguments.run(arguments, device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "processor"
    print(json.dumps({"device": name, "torch": torch.__version__, **result}))


if __name__ == "__main__":
    main()
