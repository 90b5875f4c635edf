"""In a world of one an optimizer that runs in Python ends at PyTorch's bits, or is refused."""

from __future__ import annotations

import contextlib
import inspect

import pytest
import torch
from conftest import alone, flat, loss_of, make_mlp
from test_optimizers import IN_PYTHON, NUM_STEPS, OPTIMIZERS, SCHEDULES, plain, wrapped
from test_topologies import Given

import gossamer as gs
from gossamer.compat.ddp import DistributedDataParallel

BY_PARAMETER = [
    "ASGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
]
FLAGS = ["foreach", "fused", "maximize", "amsgrad", "centered", "decoupled_weight_decay"]
# Whose work the engine does, unless a flag or a subclass says otherwise.
ENGINE = {"SGD", "Adam", "AdamW"}
REFUSED = {"LBFGS", "SparseAdam"}


def kinds():
    """Yield a class of torch.optim and an option for each test."""
    for name in filter(lambda name: hasattr(torch.optim, name), BY_PARAMETER):
        yield name, {}
        known = inspect.signature(getattr(torch.optim, name)).parameters
        for flag in FLAGS:
            if flag in known:
                yield name, {flag: True}
    yield "RMSprop", {"momentum": 0.9}
    yield "SGD", {"momentum": 0.9, "dampening": 0.1}
    yield "Adagrad", {"lr_decay": 0.1, "initial_accumulator_value": 0.1}
    if hasattr(torch.optim, "Muon"):
        yield "Muon", {}
        yield "Muon", {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}


def matrices():
    """Return a model of matrices alone, as Muon wants it."""
    layers = make_mlp()
    layers[0].bias = layers[2].bias = None
    return layers


def has_pytorchs_bits(optim_fn, schedule=None, make=make_mlp):
    """Whether buckets of one parameter each, and one bucket, both end where PyTorch ends."""
    ends = [
        alone(lambda size=size: wrapped(optim_fn, schedule, make(), bucket_size_in_mb=size))
        for size in (1e-5, 25)
    ]
    expected = plain(optim_fn, schedule, make())
    assert expected.isfinite().all()
    return [torch.equal(end, expected) for end in ends] == [True, True]


@pytest.mark.parametrize(("name", "options"), list(kinds()), ids=str)
def test_classes_of_torch_optim(name, options):
    kind = getattr(torch.optim, name)
    if name in ENGINE and not {"maximize", "amsgrad", "dampening"} & options.keys():
        # A class of the user's own runs in Python.
        kind = type(name, (kind,), {})

    def optim_fn(ps):
        groups = [{"params": ps[:1], "lr": 0.03}, {"params": ps[1:]}]
        return kind(groups, lr=0.01, **options)

    make = matrices if name == "Muon" else make_mlp
    assert has_pytorchs_bits(optim_fn, SCHEDULES["cosine"], make)


@pytest.mark.parametrize("name", IN_PYTHON)
def test_options_that_the_engine_lacks(name):
    assert has_pytorchs_bits(IN_PYTHON[name], SCHEDULES["cosine"])


def test_there_is_no_other_class_in_torch_optim():
    found = {
        name
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }
    assert found - {"Optimizer"} <= {*BY_PARAMETER, *REFUSED, "Muon"}


# The package, the class, and its options.
OTHERS = [
    ("prodigyopt", "Prodigy", {}),
    ("prodigyopt", "Prodigy", {"safeguard_warmup": True, "use_bias_correction": True}),
    ("schedulefree", "SGDScheduleFree", {"lr": 0.05}),
    ("schedulefree", "AdamWScheduleFree", {"lr": 0.01}),
    ("schedulefree", "RAdamScheduleFree", {"lr": 0.01}),
    ("lion_pytorch", "Lion", {"lr": 0.01, "weight_decay": 0.1}),
    ("transformers.optimization", "Adafactor", {}),
    ("transformers.optimization", "Adafactor", {"lr": 0.01, "relative_step": False}),
    ("bitsandbytes.optim", "AdamW8bit", {"lr": 0.01}),
    ("bitsandbytes.optim", "Lion8bit", {"lr": 0.01}),
    ("muon", "SingleDeviceMuon", {"lr": 0.01}),
    ("dadaptation", "DAdaptAdam", {}),
    ("torch_optimizer", "LARS", {"lr": 0.01}),
    ("torch_optimizer", "Lamb", {"lr": 0.01}),
    ("pytorch_optimizer", "ASGD", {"lr": 0.01}),
    ("pytorch_optimizer", "SOAP", {"lr": 0.01}),
]


@pytest.mark.parametrize(("package", "name", "options"), OTHERS, ids=str)
def test_classes_of_other_packages(package, name, options):
    kind = getattr(pytest.importorskip(package), name)

    def optim_fn(ps):
        optimizer = kind(ps, **options)
        getattr(optimizer, "train", lambda: None)()
        return optimizer

    assert has_pytorchs_bits(optim_fn, make=matrices if package == "muon" else make_mlp)


class TwoPoints(torch.optim.SGD):
    """As ScheduleFree: trains at one point, and evaluates at another, their mean."""

    def train(self):
        self._move(lambda p, z: p.mul_(2).sub_(z))

    def eval(self):
        self._move(lambda p, z: p.add_(z).div_(2))

    @torch.no_grad()
    def _move(self, move):
        for p in self.param_groups[0]["params"]:
            move(p, self.state[p].setdefault("first", p.detach().clone()))


@pytest.mark.parametrize("is_told", [True, False])
def test_an_optimizer_that_evaluates_at_another_point(is_told):
    def train(model, *, is_wrapped):
        optimizer = TwoPoints(model.parameters(), lr=0.1)
        trained = gs.DecentralizedDataParallel(model, optimizer) if is_wrapped else model
        scope = trained.write_parameters if is_wrapped and is_told else contextlib.nullcontext
        seen = []
        for step in range(8):
            if step in (3, 6):
                with scope():
                    optimizer.eval()
                seen.append(flat(model).clone())
                with scope():
                    optimizer.train()
            optimizer.zero_grad()
            loss_of(trained, 0, step).backward()
            if not is_wrapped:
                optimizer.step()
        return [*seen, flat(model).clone()]

    expected = train(make_mlp(), is_wrapped=False)
    warns = contextlib.nullcontext() if is_told else pytest.warns(UserWarning, match="outside of")
    with warns:
        ends = alone(lambda: train(make_mlp(), is_wrapped=True))
    assert all(torch.equal(a, b) for a, b in zip(ends, expected, strict=True))


@pytest.mark.parametrize("name", ["adamw", "rmsprop"])
def test_a_closure_makes_the_step(name):
    optim_fn = (OPTIMIZERS | IN_PYTHON)[name]

    def train(*, calls):
        model = gs.DecentralizedDataParallel(make_mlp(), optim_fn)
        for step in range(NUM_STEPS):

            def closure(step=step):
                loss = loss_of(model, 0, step)
                loss.backward()
                return loss

            if calls:
                assert torch.is_tensor(torch.no_grad()(model.optimizer.step)(closure))
            else:
                closure()
        return flat(model.module).clone()

    assert torch.equal(alone(lambda: train(calls=True)), alone(lambda: train(calls=False)))


@pytest.mark.parametrize("name", ["adadelta", "counting"])
def test_layers_that_are_trained_later(name):
    class Counting(torch.optim.Adadelta):
        """Runs once a step, as a class of the user's own."""

    kind = torch.optim.Adadelta if name == "adadelta" else Counting

    def train(*, is_wrapped):
        model = make_mlp()
        model[0].requires_grad_(False)
        optimizer = kind(model[2].parameters(), lr=0.1)
        trained = (
            gs.DecentralizedDataParallel(model, optimizer, bucket_size_in_mb=1e-5)
            if is_wrapped
            else model
        )
        for step in range(NUM_STEPS):
            if step == 7:
                model[0].requires_grad_(True)
                optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.2})
            optimizer.zero_grad()
            loss_of(trained, 0, step).backward()
            if not is_wrapped:
                optimizer.step()
        return flat(model).clone()

    assert torch.equal(alone(lambda: train(is_wrapped=True)), train(is_wrapped=False))


class OwnRate(torch.optim.Optimizer):
    """Sets its rate itself, and keeps a tensor in its group."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1, "largest": torch.zeros(())})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            own = [p for p in group["params"] if p.grad is not None]
            group["largest"].add_(1.0)
            group["lr"] = 0.9 * group["lr"] / float(group["largest"]) ** 0.1
            for p in own:
                p.sub_(group["lr"] * p.grad)


def test_a_rate_that_the_optimizer_sets_stays():
    assert has_pytorchs_bits(OwnRate)


def test_the_drop_in_calls_the_step_once():
    def train(wrap):
        model = wrap(make_mlp())
        optimizer = OwnRate(model.parameters())
        for step in range(6):
            optimizer.zero_grad()
            loss_of(model, 0, step).backward()
            optimizer.step()
        return flat(model).clone()

    def drop_in(module):
        return DistributedDataParallel(module, algorithm="gossip", topology="ring")

    assert torch.equal(alone(lambda: train(drop_in)), train(lambda module: module))


class NoRate(torch.optim.Optimizer):
    """Has no learning rate, as transformers' Adafactor."""

    def __init__(self, params, **defaults):
        super().__init__(params, {"size": 0.01, **defaults})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.sub_(self.param_groups[0]["size"] * p.grad)


@pytest.mark.parametrize("defaults", [{}, {"lr": None}])
def test_an_optimizer_without_a_rate(defaults):
    assert has_pytorchs_bits(lambda ps: NoRate(ps, **defaults))


class Uneven(Given):
    """Arcs after which the ranks' models have different weights."""

    directed = True


def train_over_arcs(optim_fn):
    def work():
        arcs = Uneven([(0, 1, 0.5), (1, 2, 0.5), (2, 0, 0.25)])
        model = gs.DecentralizedDataParallel(make_mlp(), optim_fn, arcs)
        for step in range(4):
            loss_of(model, 0, step).backward()
        return model.optimizer.param_groups[0]["lr"]

    return gs.run_threads(3, work)


def test_a_rate_that_the_optimizer_sets_stays_where_arcs_scale_rates():
    rate = 0.1
    for step in range(1, 5):
        rate *= 0.9 / step**0.1
    assert train_over_arcs(OwnRate) == [pytest.approx(rate, rel=1e-6)] * 3


def test_an_optimizer_without_a_rate_is_refused_where_arcs_scale_rates():
    with pytest.raises(gs.ConfigError, match="NoRate has no number lr in its groups"):
        train_over_arcs(NoRate)


class NotMade(torch.optim.SGD):
    """Calls nothing of PyTorch's class, as old versions of Lookahead."""

    def __init__(self, params):
        self.param_groups, self.state, self.defaults = [{"params": params}], {}, {}


@pytest.mark.parametrize(
    ("optim_fn", "message"),
    [
        (torch.optim.SparseAdam, "SparseAdam takes sparse gradients alone"),
        (lambda ps: torch.optim.SGD(ps, differentiable=True), "SGD has differentiable=True"),
        (NotMade, r"NotMade.__init__\(\) does not call torch.optim.Optimizer"),
    ],
    ids=["sparse", "differentiable", "not made"],
)
def test_what_no_backward_pass_can_do_is_refused(optim_fn, message):
    with pytest.raises(gs.ConfigError, match=message):
        alone(lambda: gs.DecentralizedDataParallel(make_mlp(), optim_fn))
