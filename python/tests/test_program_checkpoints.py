"""Runs that begin in the command line program and go on in Python, and the other way round."""

from __future__ import annotations

import os
import shutil
import subprocess

import numpy as np
import pytest
import safetensors.torch
import torch

import gossamer as gs

PROGRAM = os.environ.get("GOSSAMER_PROGRAM")
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="GOSSAMER_PROGRAM does not name the program"
)

CONFIG = """
run: {seed: 1, checkpoint_every: 5, keep: 3, threads: 1}
model: {name: mlp, hidden: 16, layers: 1}
data: {name: arrays, batch_size: 4, num_classes: 3}
topology: {name: ring}
lr_schedule: {name: constant}
log: {eval_every: 0}
optimizer:
"""
OPTIMIZERS = {
    "adamw": "{name: adamw, lr: 0.01, weight_decay: 0.1}",
    "sgd": "{name: sgd, lr: 0.05, momentum: 0.9, weight_decay: 0.1}",
}
INPUT = torch.arange(8) / 8


class Twin(torch.nn.Module):
    """The program's mlp, with the names of its parameters."""

    def __init__(self):
        super().__init__()
        self.hidden1 = torch.nn.Linear(8, 16)
        self.output = torch.nn.Linear(16, 3)

    def forward(self, x):
        return self.output(torch.relu(self.hidden1(x)))


def optimizer_of(name):
    def make(ps):
        # As the program, which decays no biases.
        groups = [
            {"params": [p for p in ps if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in ps if p.ndim == 1], "weight_decay": 0.0},
        ]
        if name == "adamw":
            return torch.optim.AdamW(groups, lr=0.01)
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9)

    return make


def wrapped(name):
    return gs.DecentralizedDataParallel(Twin(), optimizer_of(name), "ring")


def train(model, last):
    # All samples are the same, so that no order of the data matters.
    x, y = INPUT.repeat(4, 1), torch.full((4,), 2)
    while model.num_steps < last:
        torch.nn.functional.cross_entropy(model(x), y).backward()


class Runs:
    """A folder with data, and runs of the program on them."""

    def __init__(self, folder):
        self.folder = folder
        data = folder / "data"
        data.mkdir()
        for part in ("train", "val"):
            np.save(data / f"{part}_inputs.npy", np.tile(INPUT.numpy(), (64, 1)))
            np.save(data / f"{part}_targets.npy", np.full(64, 2))

    def call(self, *arguments):
        return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False)

    def train(self, name, out, steps, *more, ranks=2):
        config = self.folder / f"{name}.yaml"
        config.write_text(CONFIG.rstrip() + f" {OPTIMIZERS[name]}\n")
        overrides = [
            f"data.path={self.folder / 'data'}",
            f"run.output_dir={self.folder / out}",
            f"run.steps={steps}",
        ]
        return self.call("train", str(config), "--ranks", str(ranks), *overrides, *more)

    def checkpoint(self, out, step):
        return self.folder / out / "checkpoints" / f"step-{step:09d}"

    def only(self, out, step, new):
        """Begin another run's folder with one of a run's checkpoints, and return it."""
        saved = self.folder / new / "checkpoints"
        saved.mkdir(parents=True)
        shutil.copytree(self.checkpoint(out, step), self.checkpoint(new, step))
        return saved


@pytest.fixture(scope="module", params=OPTIMIZERS)
def runs(request, tmp_path_factory):
    """An undisturbed run of 15 steps; and one of which Python has made the steps 6 to 10."""
    name = request.param
    found = Runs(tmp_path_factory.mktemp(name))
    found.name = name
    done = found.train(name, "whole", 15)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = found.only("whole", 5, "python")

    def work():
        model, checkpoints = wrapped(name), gs.Checkpoints(folder)
        torch.manual_seed(99)
        assert checkpoints.resume(model) == {}
        assert model.num_steps == 5
        train(model, 10)
        checkpoints.save(model)

    gs.run_threads(2, work)
    return found


def differing(first, second, leaves_out):
    """Return the names of what differs between two checkpoints of two ranks."""
    names = set()
    for rank in range(2):
        a, b = (
            safetensors.torch.load_file(path / f"rank-{rank:05d}.safetensors")
            for path in (first, second)
        )
        for name in {*a, *b}:
            if not name.startswith(leaves_out):
                same = name in a and name in b and torch.equal(a[name], b[name])
                names |= set() if same else {name}
    return names


def test_a_run_of_the_program_goes_on_in_python_bit_for_bit(runs):
    ends = runs.checkpoint("whole", 10), runs.checkpoint("python", 10)
    assert differing(*ends, ("train/", "record/")) == set()


def test_a_run_of_python_goes_on_in_the_program_bit_for_bit(runs):
    runs.only("python", 10, "again")
    done = runs.train(runs.name, "again", 15, "--resume", "auto")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "because a loop in Python has saved" in done.stdout + done.stderr
    ends = runs.checkpoint("whole", 15), runs.checkpoint("again", 15)
    assert differing(*ends, ("train/", "record/")) == set()
    # What Python has saved stays beside it.
    assert runs.checkpoint("again", 10).is_dir()


def test_the_program_reads_what_python_has_saved(runs):
    path = str(runs.checkpoint("python", 10))
    assert runs.call("checkpoint", "verify", path).returncode == 0
    assert "after step 10, 2 ranks" in runs.call("checkpoint", "show", path).stdout
    assert runs.call("checkpoint", "diff", path, path).returncode == 0
    done = runs.call("checkpoint", "export", path, "-o", str(runs.folder / "model.safetensors"))
    assert done.returncode == 4
    assert "has no mean model, because a loop in Python has saved it" in done.stderr


@pytest.mark.parametrize(
    ("ranks", "more", "text"),
    [
        (3, [], "is of 2 ranks, and this run has 3"),
        (2, ["model.layers=2"], "the model, the algorithm or the optimizer is another one"),
    ],
)
def test_what_does_not_fit_is_refused_and_stays(runs, ranks, more, text):
    out = f"refused-{ranks}"
    runs.only("python", 10, out)
    done = runs.train(runs.name, out, 15, "--resume", "auto", *more, ranks=ranks)
    assert done.returncode == 4
    assert text in done.stderr
    assert runs.call("checkpoint", "verify", str(runs.checkpoint(out, 10))).returncode == 0


def test_another_number_of_ranks_of_the_program_goes_on_from_the_mean(runs):
    runs.only("python", 10, "three")
    reshape = ["--resume", "auto", "--reshape", "average"]
    done = runs.train(runs.name, "three", 15, *reshape, ranks=3)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (runs.checkpoint("three", 15) / "rank-00002.safetensors").is_file()
