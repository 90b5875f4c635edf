"""A loop that goes on when ranks die, and takes others in. Two lines are new: survive, num_steps.

python -m gossamer.launch -n 4 survive.py
kill -9 PID-OF-A-RANK
python -m gossamer.launch -n 1 --join HOST:PORT survive.py     # the launcher has printed the place
"""

import argparse
import os
import time

import torch

import gossamer as gs

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument(
    "--pause-s", type=float, default=0.0, help="stands for the time of a large model"
)
options = parser.parse_args()

gs.initialize_dist(survive=True)
torch.manual_seed(os.getpid())
truth = torch.randn(32, 10, generator=torch.Generator().manual_seed(0))
net = torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
model = gs.DecentralizedDataParallel(net, lambda ps: torch.optim.AdamW(ps, lr=3e-3), "base-k")
model.session.on_change(lambda change: print(f"process {os.getpid()}: {change}", flush=True))

while model.num_steps < options.steps:
    x = torch.randn(64, 32)
    loss = torch.nn.functional.cross_entropy(model(x), (x @ truth).argmax(1))
    loss.backward()
    time.sleep(options.pause_s)
    if model.num_steps % 100 == 0 and model.session.rank == 0:
        print(
            f"step {model.num_steps}: loss {loss.item():.3f}, {model.session.world_size} ranks",
            flush=True,
        )

with model.global_average(), torch.no_grad():
    x = torch.randn(2000, 32, generator=torch.Generator().manual_seed(1))
    accuracy = (net(x).argmax(1) == (x @ truth).argmax(1)).float().mean().item()
if model.session.rank == 0:
    print(f"accuracy of the mean {accuracy:.3f} after {model.num_steps} steps")
