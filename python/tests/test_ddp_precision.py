"""Gradients that are not finite, GradScalers and bfloat16 under the drop-in."""

from __future__ import annotations

import copy

import pytest
import torch
from conftest import batch, flat, loss_of, make_mlp, rank
from test_ddp_optimizers import GOSSIP, mix, sgd, simulate

import gossamer as gs
from gossamer.compat.ddp import DistributedDataParallel

# Gradients that are not finite.


def train_with_overflow(options, scaler=None, make=sgd, num_steps=4):
    """Train; rank 1's loss is infinite in step 1."""
    model = DistributedDataParallel(make_mlp(), **options)
    optimizer = make(model.parameters())
    for step in range(num_steps):
        optimizer.zero_grad()
        loss = loss_of(model, rank(), step)
        if step == 1 and rank() == 1:
            loss = loss * float("inf")
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return model


@pytest.mark.parametrize("make", [sgd, lambda ps: torch.optim.AdamW(ps, lr=0.1)])
def test_all_ranks_leave_out_a_step_whose_sum_is_not_finite(make):
    def work():
        model = train_with_overflow({"options": {"nonfinite": "skip"}}, make=make)
        metrics = model.metrics()
        return flat(model).clone(), metrics["steps"], metrics["skipped_steps"]

    ends = gs.run_threads(2, work)
    expected = make_mlp()
    optimizer = make(expected.parameters())
    for step in (0, 2, 3):
        optimizer.zero_grad()
        (loss_of(expected, 0, step) / 2 + loss_of(expected, 1, step) / 2).backward()
        optimizer.step()
    assert torch.equal(ends[0][0], ends[1][0])
    assert (ends[0][0] - flat(expected)).abs().max() < 1e-5
    assert [end[1:] for end in ends] == [(4, 1), (4, 1)]


def test_a_sum_that_is_not_finite_ends_the_run_before_the_optimizer_uses_it():
    models = [None, None]

    def work():
        models[rank()] = make_mlp()
        model = DistributedDataParallel(models[rank()])
        optimizer = sgd(model.parameters())
        (loss_of(model, rank(), 0) * (float("nan") if rank() == 1 else 1)).backward()
        optimizer.step()

    with pytest.raises(gs.NonFiniteError, match=r"step 1: the .*gradient.* of [02]\.(bias|weight)"):
        gs.run_threads(2, work)
    for model in models:
        assert flat(model).isfinite().all()


def test_gradients_that_a_program_has_repaired_are_used():
    def work():
        model = DistributedDataParallel(make_mlp())
        optimizer = sgd(model.parameters())
        (loss_of(model, rank(), 0) * (float("nan") if rank() == 1 else 1)).backward()
        assert all(p.grad.isnan().all() for p in model.parameters()), "as in PyTorch, on all ranks"
        for p in model.parameters():
            p.grad.nan_to_num_(0.5)
        optimizer.step()
        return flat(model).clone()

    ends = gs.run_threads(2, work)
    assert torch.equal(ends[0], ends[1])
    assert torch.allclose(ends[0], flat(make_mlp()) - 0.05)


@pytest.mark.parametrize("options", [{}, GOSSIP], ids=["allreduce", "gossip"])
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_a_grad_scaler_leaves_out_a_step_on_all_ranks(options, fused):
    def work():
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        model = train_with_overflow(
            options, scaler, lambda ps: torch.optim.AdamW(ps, lr=0.01, fused=fused)
        )
        with model.global_average():
            mean = flat(model).clone()
        return scaler.get_scale(), mean, model.metrics()["steps"]

    ends = gs.run_threads(3, work)
    assert [scale for scale, _, _ in ends] == [512.0] * 3
    assert all(torch.equal(mean, ends[0][1]) and mean.isfinite().all() for _, mean, _ in ends)
    assert [steps for _, _, steps in ends] == [3 if options else 4] * 3


def test_a_grad_scaler_and_gossip_end_at_the_simulation():
    def work():
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        model = DistributedDataParallel(make_mlp(), **GOSSIP)
        optimizer = sgd(model.parameters())
        for step in range(4):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, rank(), step)).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6)
            scaler.step(optimizer)
            scaler.update()
        model.finish()
        return flat(model).clone()

    expected = simulate(2, lambda model: [sgd(model.parameters())], 4)
    for end, model in zip(gs.run_threads(2, work), expected, strict=True):
        assert (end - flat(model)).abs().max() < 1e-6


def test_grad_scalers_of_other_models_are_let_alone():
    def work():
        DistributedDataParallel(make_mlp(), **GOSSIP)
        net = make_mlp()
        optimizer = sgd(net.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for _ in range(rank() + 1):
            scaler.scale(loss_of(net, 0, 0)).backward()
            scaler.step(optimizer)
            scaler.update()
        return scaler.get_scale()

    assert gs.run_threads(2, work) == [1024.0, 1024.0]


# Parameters in bfloat16.


def loss_in_bfloat16(model, ranks, step):
    losses = []
    for r in ranks:
        x, y = batch(r, step)
        losses.append((model(x.bfloat16()) - y.bfloat16()).square().float().mean())
    return torch.stack(losses).mean()


@pytest.mark.parametrize("options", [{}, GOSSIP], ids=["allreduce", "gossip"])
def test_a_model_in_bfloat16_has_a_mean_before_its_first_step(options):
    def work():
        model = DistributedDataParallel(make_mlp().bfloat16(), **options)
        with model.global_average() as distance:
            return distance, flat(model).clone()

    for distance, mean in gs.run_threads(2, work):
        assert distance == 0
        assert torch.equal(mean, flat(make_mlp().bfloat16()))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_all_reduce_in_bfloat16_is_pytorchs_training(kind):
    def work():
        model = DistributedDataParallel(make_mlp().bfloat16())
        optimizer = kind(model.parameters(), lr=0.01)
        for step in range(5):
            optimizer.zero_grad()
            loss_in_bfloat16(model, [rank()], step).backward()
            assert all(p.grad.dtype == torch.bfloat16 for p in model.parameters())
            optimizer.step()
        return flat(model).clone()

    expected = make_mlp().bfloat16()
    optimizer = kind(expected.parameters(), lr=0.01)
    for step in range(5):
        parts = []
        for r in range(2):
            expected.zero_grad()
            loss_in_bfloat16(expected, [r], step).backward()
            parts.append([p.grad.clone() for p in expected.parameters()])
        for p, first, second in zip(expected.parameters(), *parts, strict=True):
            p.grad = first / 2 + second / 2
        optimizer.step()
    ends = gs.run_threads(2, work)
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], flat(expected))


@pytest.mark.parametrize(
    "make",
    [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop],
    ids=lambda kind: kind.__name__,
)
def test_gossip_in_bfloat16_updates_master_copies(make):
    """As training with float32 parameters that the model rounds, mixed by the ring's weights."""

    def work():
        model = DistributedDataParallel(make_mlp().bfloat16(), **GOSSIP, bucket_cap_mb=1e-5)
        optimizer = make(model.parameters(), lr=1e-3)
        for step in range(6):
            optimizer.zero_grad()
            loss_in_bfloat16(model, [rank()], step).backward()
            optimizer.step()
            assert all(p.dtype == p.grad.dtype == torch.bfloat16 for p in model.parameters())
            if step == 3:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        model.finish()
        return flat(model).clone()

    ring = gs.topology("ring", 2)
    models = [make_mlp().bfloat16() for _ in range(2)]
    masters = [copy.deepcopy(model).float() for model in models]
    optimizers = [make(master.parameters(), lr=1e-3) for master in masters]
    for step in range(6):
        for r, model in enumerate(models):
            model.zero_grad()
            loss_in_bfloat16(model, [r], step).backward()
            for p, master in zip(model.parameters(), masters[r].parameters(), strict=True):
                master.grad = p.grad.float()
        if step > 0:
            mix(masters, torch.tensor(ring.matrix(step - 1), dtype=torch.float32))
        for r, model in enumerate(models):
            optimizers[r].step()
            with torch.no_grad():
                for p, master in zip(model.parameters(), masters[r].parameters(), strict=True):
                    p.copy_(master)
    for end, model in zip(gs.run_threads(2, work), models, strict=True):
        # A float32 sum in another order may be rounded to the next bfloat16.
        assert ((end - flat(model)).abs() <= 0.01 * flat(model).abs()).all()
        assert (end == flat(model)).float().mean() > 0.97


def test_gossip_keeps_loaded_states_of_bfloat16_parameters_in_float32():
    def work():
        model = DistributedDataParallel(make_mlp().bfloat16(), **GOSSIP)
        optimizers = [torch.optim.AdamW(model.parameters(), lr=0.01) for _ in range(2)]
        loss_in_bfloat16(model, [rank()], 0).backward()
        optimizers[0].step()
        saved = copy.deepcopy(optimizers[0].state_dict())
        optimizers[1].load_state_dict(saved)
        for i, state in optimizers[1].state_dict()["state"].items():
            assert state["exp_avg"].dtype == torch.float32
            assert torch.equal(state["exp_avg"], saved["state"][i]["exp_avg"])
            assert torch.equal(state["exp_avg_sq"], saved["state"][i]["exp_avg_sq"])
            assert state["step"] == 1

    gs.run_threads(2, work)


def without_gradient(model):
    """Return a loss whose gradient is zero: a step multiplies Adam's first moment by 0.9."""
    return 0 * model(batch(0, 0)[0].bfloat16()).float().sum()


def loaded_before_wrapping(net):
    """Return an optimizer that has loaded a first moment of 0.3, which bfloat16 has not."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.0)
    without_gradient(net).backward()
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    for entry in saved["state"].values():
        entry["exp_avg"] = torch.full_like(entry["exp_avg"], 0.3, dtype=torch.float32)
    optimizer.load_state_dict(saved)
    return optimizer


def assert_first_moments(optimizer, value):
    for entry in optimizer.state.values():
        torch.testing.assert_close(entry["exp_avg"], torch.full_like(entry["exp_avg"], value))


def test_gossip_takes_over_float32_states_that_were_loaded_before_it_was_made():
    def work():
        net = make_mlp().bfloat16()
        optimizer = loaded_before_wrapping(net)
        model = DistributedDataParallel(net, **GOSSIP)
        for _ in range(2):
            without_gradient(model).backward()
            optimizer.step()
        assert_first_moments(optimizer, 0.243)

    gs.run_threads(2, work)


def test_states_that_a_program_has_written_after_loading_stay():
    def work():
        net = make_mlp().bfloat16()
        optimizer = loaded_before_wrapping(net)
        for entry in optimizer.state.values():
            entry["exp_avg"].fill_(0.5)
        model = DistributedDataParallel(net, **GOSSIP)
        without_gradient(model).backward()
        optimizer.step()
        assert_first_moments(optimizer, 0.45)

    gs.run_threads(1, work)


def test_allreduce_loads_states_of_bfloat16_parameters_as_pytorch_does():
    def work():
        model = DistributedDataParallel(make_mlp().bfloat16())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        loss_in_bfloat16(model, [rank()], 0).backward()
        optimizer.step()
        saved = optimizer.state_dict()
        saved["state"][0]["exp_avg"] = torch.full((16, 8), 0.3)
        optimizer.load_state_dict(saved)
        assert optimizer.state_dict()["state"][0]["exp_avg"].dtype == torch.bfloat16

    gs.run_threads(1, work)


def test_small_updates_of_bfloat16_parameters_add_up_under_gossip():
    """An update of a thousandth of the value is lost in bfloat16, and kept in its master copy."""

    def work():
        net = torch.nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
        torch.nn.init.ones_(net.weight)
        model = DistributedDataParallel(net, **GOSSIP)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(100):
            optimizer.zero_grad()
            model(torch.ones(1, 1, dtype=torch.bfloat16)).sum().backward()
            optimizer.step()
        return net.weight.item()

    assert gs.run_threads(2, work) == pytest.approx([0.9, 0.9], abs=0.005)
