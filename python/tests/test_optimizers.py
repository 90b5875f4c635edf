"""In a world of one the wrapper does what PyTorch's optimizer does."""

from __future__ import annotations

import pytest
import torch
from conftest import alone, flat, loss_of, make_mlp

import gossamer as gs

NUM_STEPS = 20
OPTIMIZERS = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.05, weight_decay=0.01),
    "momentum": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda ps: torch.optim.Adam(ps, lr=0.01, weight_decay=0.1),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.01, weight_decay=0.1),
    "two groups": lambda ps: torch.optim.AdamW(
        [
            {"params": ps[:2], "lr": 0.03, "weight_decay": 0.0},
            {"params": ps[2:], "lr": 0.003, "betas": (0.8, 0.9)},
        ]
    ),
}
IN_PYTHON = {
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, lr=0.01),
    "amsgrad": lambda ps: torch.optim.Adam(ps, lr=0.01, amsgrad=True),
    "two kinds": lambda ps: torch.optim.SGD(
        [{"params": ps[:2], "momentum": 0.9}, {"params": ps[2:]}], lr=0.05
    ),
}
SCHEDULES = {
    "none": None,
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=NUM_STEPS),
    # Moves betas or momentum as well as the rate.
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(
        o, max_lr=0.1, total_steps=NUM_STEPS + 1
    ),
    "sequential": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=5),
            torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
        ],
        milestones=[5],
    ),
}


def plain(optim_fn, schedule, model=None, accumulate=1):
    model = make_mlp() if model is None else model
    optimizer = optim_fn(list(model.parameters()))
    scheduler = schedule(optimizer) if schedule else None
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        for part in range(accumulate):
            loss_of(model, part, step).backward()
        optimizer.step()
        if scheduler:
            scheduler.step()
    return flat(model)


def wrapped(optim_fn, schedule, model=None, accumulate=1, **options):
    model = make_mlp() if model is None else model
    wrapper = gs.DecentralizedDataParallel(
        model, optim_fn, lr_scheduler_fn=schedule, **{"bucket_size_in_mb": 1e-5} | options
    )
    for step in range(NUM_STEPS):
        for part in range(accumulate):
            wrapper.set_accumulate_grad(part + 1 < accumulate)
            loss_of(wrapper, part, step).backward()
        assert all(p.grad is None for p in model.parameters())
    assert wrapper.metrics()["steps"] == NUM_STEPS
    end = flat(model).clone()
    wrapper.finish()
    return end


def largest_difference(a, b):
    return (a - b).abs().max().item()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_engine_does_the_work_of(name, schedule):
    optim_fn, scheduler = OPTIMIZERS[name], SCHEDULES[schedule]
    if name == "sgd" and schedule == "one cycle":
        pytest.skip("the schedule cycles a momentum, which this optimizer lacks")
    actual = alone(lambda: wrapped(optim_fn, scheduler))
    assert largest_difference(actual, plain(optim_fn, scheduler)) < 5e-7


@pytest.mark.parametrize("name", IN_PYTHON)
def test_unknown_optimizers_run_in_python(name):
    for size in (1e-5, 25):
        actual = alone(
            lambda size=size: wrapped(IN_PYTHON[name], SCHEDULES["cosine"], bucket_size_in_mb=size)
        )
        assert largest_difference(actual, plain(IN_PYTHON[name], SCHEDULES["cosine"])) == 0.0


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_runs_in_python():
    def model():
        layers = make_mlp()
        # Muon takes matrices alone.
        layers[0].bias = layers[2].bias = None
        return layers

    def muon(ps):
        return torch.optim.Muon(ps, lr=0.01)

    actual = alone(lambda: wrapped(muon, SCHEDULES["cosine"], model()))
    assert largest_difference(actual, plain(muon, SCHEDULES["cosine"], model())) == 0.0


@pytest.mark.parametrize("name", ["AccumAdam", "AccumAdamW"])
def test_engine_does_the_work_of_decent_dps(name, monkeypatch):
    kind = getattr(pytest.importorskip("decent_dp.optim"), name)
    # decent-dp 0.2.3 calls a method that PyTorch has renamed.
    renamed = getattr(torch.optim.Optimizer, "_accelerator_graph_capture_health_check", None)
    if renamed is not None:
        old = "_cuda_graph_capture_health_check"
        monkeypatch.setattr(torch.optim.Optimizer, old, renamed, raising=False)

    def optim_fn(ps):
        return kind(ps, lr=0.01, weight_decay=0.1, accum_iter=3)

    actual = alone(lambda: wrapped(optim_fn, None))
    assert largest_difference(actual, plain(optim_fn, None)) < 5e-7


def test_a_subclass_runs_in_python():
    class Half(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad.mul_(0.5)
            return super().step(closure)

    def half(ps):
        return Half(ps, lr=0.1)

    actual = alone(lambda: wrapped(half, None))
    assert largest_difference(actual, plain(half, None)) == 0.0


def test_gradients_accumulate():
    adamw = OPTIMIZERS["adamw"]
    actual = alone(lambda: wrapped(adamw, None, accumulate=3))
    assert largest_difference(actual, plain(adamw, None, accumulate=3)) < 5e-7


def test_an_optimizer_and_a_schedule_of_the_users_own():
    def train():
        model = make_mlp()
        optimizer = OPTIMIZERS["adamw"](list(model.parameters()))
        schedule = SCHEDULES["cosine"](optimizer)
        wrapper = gs.DecentralizedDataParallel(model, optimizer)
        assert wrapper.optimizer is optimizer
        for step in range(NUM_STEPS):
            loss_of(wrapper, 0, step).backward()
            schedule.step()
        return flat(model).clone()

    expected = plain(OPTIMIZERS["adamw"], SCHEDULES["cosine"])
    assert largest_difference(alone(train), expected) < 5e-7


def test_habits_warn_once_and_do_no_harm():
    def train():
        wrapper = gs.DecentralizedDataParallel(make_mlp(), OPTIMIZERS["adamw"])
        with pytest.warns(UserWarning, match="leave out step") as caught:
            for step in range(NUM_STEPS):
                wrapper.optimizer.zero_grad()
                loss_of(wrapper, 0, step).backward()
                wrapper.optimizer.step()
        assert len(caught) == 1
        return flat(wrapper.module).clone()

    assert largest_difference(alone(train), plain(OPTIMIZERS["adamw"], None)) < 5e-7


def test_rates_of_zero_and_of_one_group_alone():
    def frozen(ps):
        return torch.optim.AdamW([{"params": ps[:2], "lr": 0.0}, {"params": ps[2:]}], lr=0.01)

    assert largest_difference(alone(lambda: wrapped(frozen, None)), plain(frozen, None)) < 5e-7


def test_parameters_that_the_optimizer_lacks_are_refused():
    def train():
        gs.DecentralizedDataParallel(make_mlp(), lambda ps: torch.optim.SGD(ps[:1], lr=0.1))

    with pytest.raises(gs.ConfigError, match="the optimizer has 1 of the 4 parameters"):
        alone(train)
