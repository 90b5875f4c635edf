"""A recipe for all-reduce in a loop under the drop-in: rate and norm follow the noise."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from conftest import DEVICE, rank
from test_recipe import Numbers

import gossamer as gs
from gossamer.compat.ddp import DistributedDataParallel

COMPLETE = {"algorithm": "gossip", "topology": "complete"}


def train(num_steps, make, *, recipe="allreduce", norm=None, passes=1, **others):
    """Return the first number after each step, the norms before clipping, and the last factor."""

    def work():
        model = DistributedDataParallel(Numbers(), **(COMPLETE | others), recipe=recipe)
        optimizer = make(model.parameters())
        x = torch.tensor([1.0, 1.0 - 2 * rank()], device=DEVICE) / passes
        found, norms = [], []
        for _ in range(num_steps):
            optimizer.zero_grad()
            for _ in range(passes):
                model(x).backward()
            if norm is not None:
                norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), norm)))
            optimizer.step()
            found.append(float(model.module.weight.detach()[0]))
        return found, norms, model.recipe_factor

    return gs.run_threads(2, work)[0]


def adamw(parameters, decay=0.0):
    return torch.optim.AdamW(parameters, lr=0.1, weight_decay=decay)


def sgd(parameters, decay=0.0):
    return torch.optim.SGD(parameters, lr=0.1, weight_decay=decay)


def test_steps_of_adam_grow_by_the_noise_after_ten_steps():
    weights, _, factor = train(12, adamw)
    assert math.isclose(weights[8] - weights[9], 0.1, rel_tol=1e-5)
    assert math.isclose(weights[10] - weights[11], 0.1 * math.sqrt(2), rel_tol=1e-5)
    assert math.isclose(factor, math.sqrt(2), rel_tol=1e-6)


def test_passes_that_add_up_have_one_factor():
    weights, norms, _ = train(12, adamw, norm=100.0, passes=3)
    assert math.isclose(norms[11], 1.0, rel_tol=1e-5)
    assert math.isclose(weights[10] - weights[11], 0.1 * math.sqrt(2), rel_tol=1e-5)


def test_the_norm_that_clips_sees_the_norm_of_the_mean():
    _, norms, _ = train(12, adamw, norm=100.0)
    assert math.isclose(norms[9], math.sqrt(2), rel_tol=1e-5)
    assert math.isclose(norms[10], 1.0, rel_tol=1e-5)


def test_optimizers_of_two_parts_have_gradients_of_their_own():
    def work():
        model = DistributedDataParallel(
            torch.nn.ModuleList([Numbers(), Numbers()]), **COMPLETE, recipe="allreduce"
        )
        first, second = (adamw(part.parameters()) for part in model.module)
        x = torch.tensor([1.0, 1.0 - 2 * rank()], device=DEVICE)
        found = []
        for _ in range(12):
            model.zero_grad()
            sum(part(x) for part in model.module).backward()
            first.step()
            second.step()
            found.append([float(part.weight.detach()[0]) for part in model.module])
        return found

    weights = gs.run_threads(2, work)[0]
    # Each step() is a step of the engine, so the tenth is the second one of the fifth pass.
    for part in (0, 1):
        assert math.isclose(weights[6][part] - weights[7][part], 0.1 * math.sqrt(2), rel_tol=1e-5)


def test_steps_of_sgd_stay_where_nothing_is_clipped():
    weights, _, factor = train(12, sgd)
    assert math.isclose(weights[10] - weights[11], 0.1, rel_tol=1e-5)
    assert math.isclose(factor, math.sqrt(2), rel_tol=1e-6)


def test_steps_of_sgd_grow_where_gradients_are_clipped():
    weights, _, _ = train(12, sgd, norm=1.0)
    assert math.isclose(weights[8] - weights[9], 0.1 * math.sqrt(0.5), rel_tol=1e-5)
    assert math.isclose(weights[10] - weights[11], 0.1, rel_tol=1e-5)


@pytest.mark.parametrize("make", [adamw, sgd])
def test_weights_decay_as_without_the_recipe(make):
    def decayed(parameters):
        return make(parameters, decay=0.5)

    weights, _, factor = train(12, decayed)
    plain, _, _ = train(12, make)
    assert factor > 1.4
    decay = (weights[11] - weights[10]) - (plain[11] - plain[10])
    assert math.isclose(decay, -0.1 * 0.5 * weights[10], rel_tol=1e-4)


def test_a_matrix_moves_by_muon_with_the_longer_step():
    muon = getattr(torch.optim, "Muon", None)
    if muon is None:
        pytest.skip("PyTorch has Muon from 2.9 on")

    def steps(recipe):
        def work():
            net = torch.nn.Linear(2, 2, bias=False)
            torch.nn.init.zeros_(net.weight)
            model = DistributedDataParallel(net, **COMPLETE, recipe=recipe)
            optimizer = muon(model.parameters(), lr=0.1, weight_decay=0.0)
            signs = torch.tensor([1.0, 1.0 - 2 * rank()])
            found = []
            for _ in range(12):
                optimizer.zero_grad()
                (model(torch.eye(2)) * signs).sum().backward()
                optimizer.step()
                found.append(net.weight.detach().clone())
            return found[11] - found[10], model.recipe_factor

        return gs.run_threads(2, work)[0]

    plain, longer = steps("own"), steps("allreduce")
    assert longer[1] > 1.1
    # With the peer's step mixed in, which is as much longer.
    torch.testing.assert_close(longer[0], plain[0] * longer[1], rtol=1e-4, atol=1e-6)


def test_descent_with_momentum_was_measured():
    def momentum(parameters):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    _, norms, _ = train(12, momentum, norm=100.0)
    assert math.isclose(norms[11], 1.0, rel_tol=1e-5)


def test_rates_are_the_loops_own_after_a_step():
    def work():
        model = DistributedDataParallel(Numbers(), **COMPLETE, recipe="allreduce")
        optimizer = adamw(model.parameters(), decay=0.5)
        for _ in range(12):
            optimizer.zero_grad()
            model(torch.tensor([1.0, 1.0 - 2 * rank()], device=DEVICE)).backward()
            optimizer.step()
        group = optimizer.param_groups[0]
        return group["lr"], group["weight_decay"]

    assert gs.run_threads(2, work)[0] == (0.1, 0.5)


def test_nothing_changes_where_the_recipe_is_the_loops_own():
    weights, norms, factor = train(12, adamw, recipe="own", norm=100.0)
    assert math.isclose(weights[10] - weights[11], 0.1, rel_tol=1e-5)
    assert math.isclose(norms[11], math.sqrt(2), rel_tol=1e-5)
    assert factor == 1.0


def test_an_optimizer_that_was_not_measured_stays_as_it_is_with_a_warning():
    def rms(parameters):
        return torch.optim.RMSprop(parameters, lr=0.1)

    with pytest.warns(UserWarning, match="no rule has been found for the optimizer RMSprop"):
        _, norms, _ = train(12, rms, norm=100.0)
    assert math.isclose(norms[11], math.sqrt(2), rel_tol=1e-5)


def test_an_optimizer_without_a_rule_gets_whole_gradients_where_it_comes_later():
    def work():
        parts = torch.nn.ModuleList([Numbers(), Numbers()])
        model = DistributedDataParallel(parts, **COMPLETE, recipe="allreduce")
        first, later = adamw(parts[0].parameters()), torch.optim.Rprop(parts[1].parameters())
        x = torch.tensor([1.0, 1.0 - 2 * rank()], device=DEVICE)
        for step in range(13):
            model.zero_grad()
            sum(part(x) for part in parts).backward()
            first.step()
            if step == 12:
                later.step()
        return parts[1].weight.grad.tolist()

    with pytest.warns(UserWarning, match="no rule has been found for the optimizer Rprop"):
        found = gs.run_threads(2, work)[0]
    assert found == pytest.approx([1.0, 1.0], rel=1e-6)


def test_means_of_gradients_need_no_factor():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weights, _, factor = train(12, adamw, algorithm="allreduce", topology=None)
    assert math.isclose(weights[10] - weights[11], 0.1, rel_tol=1e-5)
    assert factor == 1.0
