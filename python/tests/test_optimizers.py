"""In a world of one the wrapper does what PyTorch's optimizer does."""

from __future__ import annotations

import pytest
import torch
from conftest import alone, flat, loss_of, make_mlp, rank

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


class Counting(torch.optim.Optimizer):
    """As ScheduleFree and Prodigy: counts its steps, and divides by the norm of all gradients."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})
        self.num_steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.num_steps += 1
        parameters = [p for group in self.param_groups for p in group["params"]]
        squares = [p.grad.square().sum() for p in parameters if p.grad is not None]
        norm = torch.stack(squares).sum().sqrt()
        for p in parameters:
            if p.grad is not None:
                p.sub_(p.grad / norm * (self.param_groups[0]["lr"] / self.num_steps))


@pytest.mark.parametrize("options", [{}, {"grad_clip": "global", "grad_clip_norm": 0.1}])
def test_an_unknown_optimizer_makes_one_step_a_step(options):
    def train():
        model = make_mlp()
        wrapper = gs.DecentralizedDataParallel(
            model, Counting, bucket_size_in_mb=1e-5, options=options
        )
        for step in range(NUM_STEPS):
            loss_of(wrapper, 0, step).backward()
        assert wrapper.optimizer.num_steps == NUM_STEPS
        return flat(model).clone()

    # Gradients of any norm give the same steps, so that clipping rounds and no more.
    limit = 0.0 if not options else 1e-6
    assert largest_difference(alone(train), plain(Counting, None)) <= limit


@pytest.mark.parametrize("algorithm", ["gossip", "allreduce", "async_gossip"])
def test_ranks_of_an_unknown_optimizer_make_one_step_a_step(algorithm):
    def train(size):
        model = make_mlp()
        topology = {} if algorithm == "allreduce" else {"topology": "one-peer-exp"}
        wrapper = gs.DecentralizedDataParallel(
            model, Counting, algorithm=algorithm, bucket_size_in_mb=size, **topology
        )
        for step in range(6):
            loss_of(wrapper, rank(), step).backward()
        assert wrapper.optimizer.num_steps == 6
        wrapper.finish()
        return flat(model).clone()

    one, several = (gs.run_threads(4, lambda size=size: train(size)) for size in (25, 1e-5))
    if algorithm != "async_gossip":
        for a, b in zip(one, several, strict=True):
            assert largest_difference(a, b) < 1e-12


def hooked(optimizer, calls):
    def before(own, args, kwargs):
        gradients = [p.grad for group in own.param_groups for p in group["params"]]
        calls.append(("before", sum(g is not None for g in gradients)))
        for gradient in gradients:
            if gradient is not None:
                gradient.mul_(0.5)

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(lambda *_: calls.append(("after", 0)))
    return optimizer


@pytest.mark.parametrize("name", ["momentum", "rmsprop"])
def test_hooks_of_the_optimizer_run_once_a_step(name):
    optim_fn = (OPTIMIZERS | IN_PYTHON)[name]
    calls, expected = [], []
    end = alone(lambda: wrapped(lambda ps: hooked(optim_fn(ps), calls), None))
    assert torch.equal(end, plain(lambda ps: hooked(optim_fn(ps), expected), None))
    assert calls == expected == [("before", 4), ("after", 0)] * NUM_STEPS


@pytest.mark.parametrize("name", ["adamw", "rmsprop"])
def test_hooks_after_wrapping_run_once_a_step(name):
    def train():
        calls = []
        wrapper = gs.DecentralizedDataParallel(
            make_mlp(), (OPTIMIZERS | IN_PYTHON)[name], bucket_size_in_mb=1e-5
        )
        wrapper.optimizer.register_step_post_hook(lambda *_: calls.append("after"))
        for step in range(3):
            loss_of(wrapper, 0, step).backward()
        assert calls == ["after"] * 3
        wrapper.optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        with pytest.warns(UserWarning, match="register it before wrapping"):
            loss_of(wrapper, 0, 3).backward()
        assert calls[3:] == ["before", "after"]

    alone(train)


def test_a_step_that_somebody_has_replaced_is_called():
    def halved(ps):
        optimizer = torch.optim.SGD(ps, lr=0.1)
        own = optimizer.step

        def step(closure=None):
            for p in ps:
                p.grad.mul_(0.5)
            return own(closure)

        optimizer.step = step
        return optimizer

    assert largest_difference(alone(lambda: wrapped(halved, None)), plain(halved, None)) == 0.0


class CallsItsClosure(torch.optim.SGD):
    """Takes its gradients at a second point, as sharpness-aware minimization does."""

    def step(self, closure=None):
        torch.enable_grad()(closure)()
        return super().step()


def test_an_optimizer_that_calls_its_closure_is_refused_in_its_first_step():
    def work():
        model = gs.DecentralizedDataParallel(make_mlp(), lambda ps: CallsItsClosure(ps, lr=0.1))
        loss_of(model, 0, 0).backward()

    message = r"CallsItsClosure.step\(\) has called its closure.*optimizers whose step\(\) needs no"
    with pytest.raises(gs.ConfigError, match=message):
        alone(work)


def test_optimizers_and_schedules_that_need_something_are_refused():
    def wrap(optim_fn, schedule=None):
        gs.DecentralizedDataParallel(make_mlp(), optim_fn, lr_scheduler_fn=schedule)

    with pytest.raises(gs.ConfigError, match=r"LBFGS.step\(\) needs closure"):
        alone(lambda: wrap(torch.optim.LBFGS))
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    with pytest.raises(gs.ConfigError, match=r"ReduceLROnPlateau.step\(\) needs metrics"):
        alone(lambda: wrap(OPTIMIZERS["sgd"], plateau))


def test_parameters_that_only_the_optimizer_has_are_refused():
    def train():
        model, temperature = make_mlp(), torch.nn.Parameter(torch.ones(7))
        constant = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        optimizer = torch.optim.SGD([*model.parameters(), constant, temperature], lr=0.1)
        gs.DecentralizedDataParallel(model, optimizer)

    with pytest.raises(gs.ConfigError, match=r"1 parameters that the module has not.*0\.5 \[7\]"):
        alone(train)


def test_the_optimizer_is_given_back():
    def train():
        model = make_mlp()
        wrapper = gs.DecentralizedDataParallel(model, OPTIMIZERS["sgd"])
        loss_of(wrapper, 0, 0).backward()
        wrapper.finish()
        before = flat(model).clone()
        loss_of(model, 0, 1).backward()
        wrapper.optimizer.step()
        assert largest_difference(flat(model), before) > 0
        wrapper.optimizer.zero_grad()
        assert all(p.grad is None for p in model.parameters())

    alone(train)


def test_gradients_from_before_wrapping_belong_to_no_step():
    def train():
        model = make_mlp()
        loss_of(model, 0, 17).backward()
        wrapper = gs.DecentralizedDataParallel(model, OPTIMIZERS["sgd"])
        for step in range(NUM_STEPS):
            loss_of(wrapper, 0, step).backward()
        return flat(model).clone()

    assert largest_difference(alone(train), plain(OPTIMIZERS["sgd"], None)) < 5e-7
