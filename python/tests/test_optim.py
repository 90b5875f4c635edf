"""Optimizers of the engine that PyTorch lacks, or that belong to gossip."""

from __future__ import annotations

import pytest
import torch
from conftest import alone, flat, loss_of, make_mlp, rank

import gossamer as gs

NUM_STEPS = 20


def train(optim_fn, model=None, num_steps=NUM_STEPS, **settings):
    """Train in the session of this rank, and return the wrapper."""
    wrapper = gs.DecentralizedDataParallel(model or make_mlp(), optim_fn, **settings)
    for step in range(num_steps):
        loss_of(wrapper, rank(), step).backward()
    return wrapper


def plain(optimizer, model):
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        loss_of(model, 0, step).backward()
        optimizer.step()
    return flat(model)


def ends_alone(optim_fn, make=make_mlp):
    def work():
        wrapper = train(optim_fn, make())
        wrapper.finish()
        return flat(wrapper.module)

    return alone(work)


def only_matrices():
    return torch.nn.Sequential(
        *[m if isinstance(m, torch.nn.Tanh) else without_bias(m) for m in make_mlp()]
    )


def without_bias(layer):
    layer.bias = None
    return layer


def test_adamw_is_pytorchs():
    model = make_mlp()
    expected = plain(torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1), model)
    end = ends_alone(lambda ps: gs.optim.AdamW(ps, lr=0.01, weight_decay=0.1))
    assert (end - expected).abs().max() < 5e-7


def test_lion_is_the_papers():
    model = make_mlp()
    momenta = [torch.zeros_like(p) for p in model.parameters()]
    for step in range(NUM_STEPS):
        model.zero_grad()
        loss_of(model, 0, step).backward()
        with torch.no_grad():
            for p, m in zip(model.parameters(), momenta, strict=True):
                p.mul_(1 - 0.01 * 0.1).sub_(0.01 * torch.sign(0.9 * m + 0.1 * p.grad))
                m.mul_(0.99).add_(p.grad, alpha=0.01)
    end = ends_alone(lambda ps: gs.optim.Lion(ps, lr=0.01, weight_decay=0.1))
    assert (end - flat(model)).abs().max() < 1e-6


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this PyTorch has no Muon")
@pytest.mark.parametrize("adjust_lr_fn", [None, "match_rms_adamw"])
def test_muon_is_pytorchs(adjust_lr_fn):
    settings = {"lr": 0.02, "weight_decay": 0.1, "adjust_lr_fn": adjust_lr_fn}
    model = only_matrices()
    expected = plain(torch.optim.Muon(model.parameters(), **settings), model)
    end = ends_alone(lambda ps: gs.optim.Muon(ps, **settings), only_matrices)
    # PyTorch multiplies the matrices in bfloat16.
    assert (end - expected).norm() < 0.02 * (expected - flat(only_matrices())).norm()


def test_extra_alone_is_the_rule_inside():
    model = make_mlp()
    expected = plain(torch.optim.SGD(model.parameters(), lr=0.05), model)
    assert (ends_alone(lambda ps: gs.optim.Extra(ps, lr=0.05)) - expected).abs().max() < 1e-5


QADAM = {"algorithm": {"name": "allreduce", "sends": "momentum"}, "codec": "int8"}


@pytest.mark.parametrize(
    ("optim_fn", "settings"),
    [
        (lambda ps: gs.optim.QGSGD(ps, lr=0.05), {"topology": "ring"}),
        (lambda ps: gs.optim.Extra(ps, lr=0.05), {"topology": "static-ring"}),
        (lambda ps: gs.optim.Adam(ps, lr=0.01, mixing_momentum=0.3), {"topology": "ring"}),
        (lambda ps: gs.optim.Lion(ps, lr=0.01), {"topology": "ring"}),
        (lambda ps: gs.optim.QAdam(ps, lr=0.01, warmup=10), QADAM),
    ],
    ids=["qg_sgd", "extra", "mixing_momentum", "lion", "qadam"],
)
def test_they_train_with_peers(optim_fn, settings):
    def work():
        start = loss_of(make_mlp(), 0, 0).item()
        wrapper = train(optim_fn, num_steps=60, **settings)
        with wrapper.global_average():
            end = loss_of(wrapper.module, 0, 0).item()
        wrapper.finish()
        return end / start

    assert max(gs.run_threads(3, work)) < 0.5


def test_a_schedule_and_groups_have_numbers_of_their_own():
    def work():
        model = make_mlp()

        def optim_fn(ps):
            optimizer = gs.optim.Lion(list(model[0].parameters()), lr=0.01)
            optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.0})
            return optimizer

        start = [p.detach().clone() for p in model.parameters()]
        wrapper = gs.DecentralizedDataParallel(model, optim_fn)
        # It keeps max_lr, min_lr and more in every group, and begins far below max_lr.
        rates = torch.optim.lr_scheduler.OneCycleLR(wrapper.optimizer, [0.01, 1e-30], 10)
        for step in range(3):
            loss_of(wrapper, 0, step).backward()
            rates.step()
        wrapper.finish()
        return [not torch.equal(p, q) for p, q in zip(model.parameters(), start, strict=True)]

    assert alone(work) == [True, True, False, False]


def test_the_state_goes_out_and_comes_in():
    def work():
        def optim_fn(ps):
            return gs.optim.QGSGD(ps, lr=0.05)

        whole = train(optim_fn, num_steps=12)
        first = train(optim_fn, num_steps=6)
        state = first.optimizer.state_dict()
        assert set(state["state"][0]) == {"momentum", "step"}
        model = make_mlp()
        model.load_state_dict(first.module.state_dict())
        second = gs.DecentralizedDataParallel(model, optim_fn)
        second.optimizer.load_state_dict(state)
        for step in range(6, 12):
            loss_of(second, 0, step).backward()
        for wrapper in (whole, first, second):
            wrapper.finish()
        return (flat(whole.module) - flat(second.module)).abs().max()

    assert alone(work) == 0


def test_muon_refuses_biases():
    with pytest.raises(gs.ConfigError, match=r"no matrices, of the shapes \[\[16\], \[3\]\]"):
        gs.optim.Muon(make_mlp().parameters())


def test_a_step_of_its_own_is_refused():
    with pytest.raises(gs.ConfigError, match="Lion is gossamer's own"):
        gs.optim.Lion(make_mlp().parameters()).step()
