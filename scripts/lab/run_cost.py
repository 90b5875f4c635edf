#!/usr/bin/env python3
"""What gs.Run costs a training step: python -m gossamer.launch -n 2 scripts/lab/run_cost.py.

Blocks of steps with a Run and without one take turns, in the loop of examples/python/mnist.py with
random pixels. Prints medians over the blocks of rank 0's time per step: what its thread computes,
and what passes meanwhile.
"""

import argparse
import statistics
import tempfile
import time

import torch

import gossamer as gs

parser = argparse.ArgumentParser()
parser.add_argument("--every", type=int, default=10, help="steps between two records")
parser.add_argument("--steps", type=int, default=500, help="of a block")
parser.add_argument("--blocks", type=int, default=20)
options = parser.parse_args()

rank, _ = gs.initialize_dist()
x, y = torch.rand(6000, 784), torch.randint(10, (6000,))
net = torch.nn.Sequential(torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
model = gs.DecentralizedDataParallel(net, lambda ps: torch.optim.AdamW(ps, lr=1e-3), "ring")
folder = tempfile.mkdtemp()
run = gs.Run(folder, model, every=options.every, progress=False)
(follow,) = model.step_callbacks


def block(is_recorded):
    """Return the microseconds of a step: of this thread, and that pass."""
    model.step_callbacks[:] = [follow] if is_recorded else []
    begin = time.thread_time(), time.perf_counter()
    for _ in range(options.steps):
        batch = torch.randint(len(x), (32,))
        loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
        loss.backward()
        if is_recorded:
            run.log(loss, samples=32)
    end = time.thread_time(), time.perf_counter()
    return [1e6 * (b - a) / options.steps for a, b in zip(begin, end, strict=True)]


block(False)
pairs = [(block(False), block(True)) for _ in range(options.blocks)]
for k, what in enumerate(("of the thread", "that pass")):
    without, with_run = (statistics.median(pair[i][k] for pair in pairs) for i in (0, 1))
    if rank == 0:
        print(f"us of a step {what}: {without:.0f} without, {with_run:.0f} with", flush=True)
model.step_callbacks[:] = [follow]
run.finish()
