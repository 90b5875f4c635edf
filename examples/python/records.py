"""A run whose records are in a folder for gossamer watch and report, and go to a tracker.

torchrun --nproc-per-node 2 records.py runs/points
torchrun --nproc-per-node 2 records.py runs/points --tracker wandb  # a module with init() and log()
"""

import argparse
import importlib

import torch

import gossamer as gs

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--tracker", help="a module that has init() and log(dict), as wandb")
parser.add_argument("--steps", type=int, default=300)
options = parser.parse_args()

rank, _ = gs.initialize_dist()
tracker = importlib.import_module(options.tracker) if options.tracker and rank == 0 else None
if tracker is not None:
    tracker.init()

torch.manual_seed(rank)
truth = torch.randn(32, 10, generator=torch.Generator().manual_seed(0))
net = torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
model = gs.DecentralizedDataParallel(net, lambda ps: torch.optim.AdamW(ps, lr=3e-3), "ring")


def track(record):
    """Give a record to the tracker, with this rank's sums over all steps."""
    if tracker is not None:
        tracker.log(record | model.metrics())


config = vars(options)
with gs.Run(options.folder, model, config, steps=options.steps, on_record=track) as run:
    while model.num_steps < options.steps:
        x = torch.randn(64, 32)
        loss = torch.nn.functional.cross_entropy(model(x), (x @ truth).argmax(1))
        loss.backward()
        run.log(loss, samples=len(x))
        if model.num_steps % 100 == 0:
            with model.global_average() as distance, torch.no_grad():
                x = torch.randn(2000, 32)
                accuracy = (net(x).argmax(1) == (x @ truth).argmax(1)).float().mean().item()
            run.evaluation(accuracy=accuracy, consensus_distance=distance)
            if rank == 0:
                print(f"accuracy of the mean {accuracy:.3f} after {model.num_steps} steps")
