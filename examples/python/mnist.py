"""Classifies MNIST on all ranks: python mnist.py FOLDER, which has its four files (.gz)."""

import gzip
import sys

import torch

import gossamer as gs


def read(name, header):
    with gzip.open(f"{sys.argv[1]}/{name}-ubyte.gz") as file:
        return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)


rank, size = gs.initialize_dist()
x, test_x = (read(f"{part}-images-idx3", 16).view(-1, 784) / 255 for part in ("train", "t10k"))
y, test_y = (read(f"{part}-labels-idx1", 8).long() for part in ("train", "t10k"))
own = torch.arange(rank, len(x), size)  # each rank has its own data
net = torch.nn.Sequential(torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
model = gs.DecentralizedDataParallel(net, lambda ps: torch.optim.AdamW(ps, lr=1e-3), "ring")
for step in range(1, 501):
    batch = own[torch.randint(len(own), (32,))]
    torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
    if step % 100 == 0:
        with model.global_average(), torch.no_grad():
            accuracy = (model(test_x).argmax(1) == test_y).float().mean()
        if rank == 0:
            print(f"step {step}: accuracy of the mean {accuracy:.3f}", flush=True)
