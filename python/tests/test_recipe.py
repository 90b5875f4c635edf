"""A recipe for all-reduce: rate and norm follow the noise of gradients."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext

import torch
from conftest import DEVICE, rank

import gossamer as gs


class Numbers(torch.nn.Module):
    """Two numbers; ranks 0 and 1 get the gradients (1, 1) and (1, -1)."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2, device=DEVICE))

    def forward(self, x):
        return (self.weight * x).sum()


def train(num_steps, *, recipe="allreduce", optimizer=torch.optim.AdamW, folder=None, **others):
    """Return the first number after each step, and the factor for the next one, of rank 0."""

    def work():
        wrapper = gs.DecentralizedDataParallel(
            Numbers(),
            lambda ps: optimizer(ps, lr=0.1, weight_decay=0.0),
            "complete",
            recipe=recipe,
            **others,
        )
        x = torch.tensor([1.0, 1.0 if rank() == 0 else -1.0], device=DEVICE)
        found = []
        scope = gs.Run(folder, wrapper, every=1, progress=False) if folder else nullcontext()
        with scope:
            for _ in range(num_steps):
                wrapper(x).backward()
                found.append(float(wrapper.module.weight[0]))
        return found, wrapper.recipe_factor

    return gs.run_threads(2, work)[0]


def test_steps_of_adam_grow_by_the_noise_after_ten_steps():
    weights, factor = train(12)
    assert math.isclose(weights[8] - weights[9], 0.1, rel_tol=1e-5)
    assert math.isclose(weights[10] - weights[11], 0.1 * math.sqrt(2), rel_tol=1e-5)
    assert math.isclose(factor, math.sqrt(2), rel_tol=1e-6)


def test_nothing_changes_where_the_recipe_is_the_runs_own():
    weights, factor = train(12, recipe="own")
    assert math.isclose(weights[10] - weights[11], 0.1, rel_tol=1e-5)
    assert factor == 1.0


def test_a_norm_of_clip_grad_norm_grows_by_the_noise():
    options = {"grad_clip": "global", "grad_clip_norm": 1.0}
    weights, _ = train(12, optimizer=torch.optim.SGD, options=options)
    assert math.isclose(weights[8] - weights[9], 0.1 * math.sqrt(0.5), rel_tol=1e-5)
    assert math.isclose(weights[10] - weights[11], 0.1, rel_tol=1e-5)


def test_the_options_of_a_plan_name_the_recipe():
    assert train(12, recipe="own", options={"train": {"recipe": "allreduce"}})[1] > 1.4


def test_an_optimizer_that_was_not_measured_stays_as_it_is():
    assert train(12, optimizer=torch.optim.RMSprop)[1] == 1.0


def test_a_run_records_the_factor(tmp_path):
    train(12, folder=tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    factors = [r["recipe_factor"] for r in map(json.loads, lines) if r["kind"] == "step"]
    assert factors[8] == 1.0
    assert math.isclose(factors[9], math.sqrt(2), rel_tol=1e-6)
