"""Classifies MNIST's images, or a stand-in for them, on all ranks together.

python mnist.py [--images t10k-images-idx3-ubyte.gz] [--steps 300] [--topology ring]
"""

import argparse
import gzip
import pathlib

import torch

import gossamer as gs


def read_idx(path):
    """Read a file of MNIST: the number of dimensions, their sizes, then bytes."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    sizes = [int.from_bytes(data[4 + 4 * d : 8 + 4 * d], "big") for d in range(data[3])]
    return torch.tensor(bytearray(data[4 + 4 * len(sizes) :]), dtype=torch.uint8).view(sizes)


def load(images):
    """Return images and labels; ten patterns under noise, where no file is given."""
    if images is not None:
        labels = images.with_name(images.name.replace("images-idx3", "labels-idx1"))
        return read_idx(images).flatten(1) / 255, read_idx(labels).long()
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(4000) % 10
    patterns = torch.rand(10, 784, generator=generator)
    return patterns[y] + 2 * torch.randn(len(y), 784, generator=generator), y


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=pathlib.Path, help="its labels lie beside it")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--topology", default="ring")
    options = parser.parse_args()

    rank, size = gs.initialize_dist()
    x, y = load(options.images)
    num_train = int(0.85 * len(x))
    own = torch.arange(rank, num_train, size)
    net = torch.nn.Sequential(torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    model = gs.DecentralizedDataParallel(
        net, lambda ps: torch.optim.AdamW(ps, lr=1e-3), options.topology
    )
    generator = torch.Generator().manual_seed(rank)
    for step in range(1, options.steps + 1):
        batch = own[torch.randint(len(own), (32,), generator=generator)]
        loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
        loss.backward()
        if step % 100 == 0 or step == options.steps:
            with model.global_average() as distance, torch.no_grad():
                accuracy = (model(x[num_train:]).argmax(1) == y[num_train:]).float().mean()
            if rank == 0:
                print(
                    f"step {step}: loss {loss:.3f}, accuracy of the mean {accuracy:.3f}, "
                    f"distance from it {distance:.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
