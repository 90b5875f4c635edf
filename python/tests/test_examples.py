"""The programs in examples/python learn, alone and under mpirun."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path

import pytest
import torch
from conftest import needs_mpi, run_python

import gossamer

FOLDER = Path(__file__).parents[2] / "examples" / "python"
TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
PROCESSES = pytest.mark.parametrize("num_processes", [1, pytest.param(2, marks=needs_mpi)])


def accuracies(arguments, num_processes):
    """Run an example, and return the accuracies that it prints."""
    done = run_python([str(FOLDER / arguments[0]), *arguments[1:]], num_processes)
    assert done.returncode == 0, done.stderr
    return [float(text) for text in re.findall(r"accuracy of the mean (\d\.\d+)", done.stdout)]


def write_idx(path, array):
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    path.write_bytes(gzip.compress(bytes([0, 0, 8, array.dim()]) + sizes + array.numpy().tobytes()))


@PROCESSES
def test_mnist(tmp_path, num_processes):
    patterns = torch.randint(256, (10, 28, 28), dtype=torch.uint8)
    for part, count in (("train", 1000), ("t10k", 100)):
        y = torch.randint(10, (count,), dtype=torch.uint8)
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", patterns[y.long()])
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", y)
    assert accuracies(["mnist.py", str(tmp_path)], num_processes) == [1.0] * 5


def test_mnist_is_short():
    assert len((FOLDER / "mnist.py").read_text(encoding="utf-8").splitlines()) <= 30


def test_the_reference_has_every_public_name():
    text = (FOLDER.parents[1] / "docs" / "guide" / "python-reference.md").read_text(
        encoding="utf-8"
    )
    named = set(re.findall(r"^::: [\w.]+\.(\w+)$", text, re.MULTILINE))
    assert set(gossamer.__all__) - {"__version__"} <= named


# Examples that run alone are test_mnist's and test_records_go_to_a_tracker's.
@pytest.mark.parametrize(
    "num_processes",
    [pytest.param(1, marks=pytest.mark.wide), pytest.param(2, marks=needs_mpi)],
)
def test_nanogpt(tmp_path, num_processes):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 50, encoding="utf-8")
    end = accuracies(["nanogpt.py", str(text), "--steps", "60", "--context", "32"], num_processes)
    assert end[-1] > 0.6


@pytest.mark.skipif(TORCH < (2, 6), reason="fully_shard() is private there")
def test_sharded_gpt(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 50, encoding="utf-8")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    example = [str(FOLDER / "sharded_gpt.py"), str(text), "--shards", "2"]
    done = run_python([*launcher, *example, "--steps", "60", "--context", "32"], limit_s=400)
    assert done.returncode == 0, done.stderr
    (end,) = re.findall(r"accuracy of the mean (\d\.\d+)", done.stdout)
    assert float(end) > 0.6


TRACKER = """
import json, os
def init():
    pass
def log(record):
    with open(os.environ["RECORDS"], "a") as file:
        file.write(json.dumps(record) + "\\n")
"""


def test_records_go_to_a_tracker(tmp_path, monkeypatch):
    (tmp_path / "tracker.py").write_text(TRACKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("RECORDS", str(tmp_path / "tracked.jsonl"))
    folder = tmp_path / "run"
    end = accuracies(["records.py", str(folder), "--tracker", "tracker"], 1)
    assert end[-1] > 0.8
    tracked = [json.loads(line) for line in (tmp_path / "tracked.jsonl").read_text().splitlines()]
    written = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in tracked] == [r["step"] for r in written]
    assert tracked[0]["loss"] == written[0]["loss"]
    assert tracked[-1]["steps"] == 300


def test_the_document_of_algorithms_codecs_and_checkpoints_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (FOLDER.parents[1] / "docs" / "guide" / "python.md").read_text(encoding="utf-8")
    section = text.split("\n## Algorithms, codecs, checkpoints\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)

    def steps_made(code):
        def work():
            rank = gossamer.current_session().rank
            net = torch.nn.Linear(3, 1)
            for parameter in net.parameters():
                torch.nn.init.constant_(parameter, 0.1)
            names = {"torch": torch, "gs": gossamer, "rank": rank, "net": net}
            names |= {"loss_fn": torch.nn.MSELoss(), "x": torch.full((2, 3), 1.0 + rank)}
            names["y"] = torch.ones(2, 1)
            exec(code, names)
            return names["model"].metrics()["steps"], names["net"].weight.detach().clone()

        return gossamer.run_threads(3, work)

    stopped = block.replace("range(done, 20)", "range(done, 10)")
    assert stopped != block
    steps_made(stopped)
    continued = steps_made(block)
    (tmp_path / "state").rename(tmp_path / "old")
    whole = steps_made(block)
    assert [steps for steps, _ in whole] == [20] * 3
    for (_, weight), (_, expected) in zip(continued, whole, strict=True):
        assert torch.equal(weight, expected)
