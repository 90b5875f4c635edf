"""The programs in examples/python learn, alone and under mpirun."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
import torch
from conftest import needs_mpi, run_python

FOLDER = Path(__file__).parents[2] / "examples" / "python"
PROCESSES = pytest.mark.parametrize("num_processes", [1, pytest.param(2, marks=needs_mpi)])


def accuracies(arguments, num_processes):
    """Run an example, and return the accuracies that it prints."""
    done = run_python([str(FOLDER / arguments[0]), *arguments[1:]], num_processes)
    assert done.returncode == 0, done.stderr
    return [float(text) for text in re.findall(r"accuracy of the mean (\d\.\d+)", done.stdout)]


@PROCESSES
def test_mnist_without_a_file(num_processes):
    begin, end = (accuracies(["mnist.py", "--steps", n], num_processes)[-1] for n in ("2", "150"))
    assert begin < 0.5
    assert end > 0.8


def write_idx(path, array):
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    path.write_bytes(gzip.compress(bytes([0, 0, 8, array.dim()]) + sizes + array.numpy().tobytes()))


def test_mnist_from_files(tmp_path):
    y = (torch.arange(1000) % 10).to(torch.uint8)
    x = torch.zeros(1000, 28, 28, dtype=torch.uint8)
    x[torch.arange(1000), y.long()] = 255
    images = tmp_path / "some-images-idx3-ubyte.gz"
    write_idx(images, x)
    write_idx(tmp_path / "some-labels-idx1-ubyte.gz", y)
    assert accuracies(["mnist.py", "--images", str(images), "--steps", "60"], 1) == [1.0]


@PROCESSES
def test_nanogpt(tmp_path, num_processes):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 50, encoding="utf-8")
    end = accuracies(["nanogpt.py", str(text), "--steps", "60", "--context", "32"], num_processes)
    assert end[-1] > 0.6
