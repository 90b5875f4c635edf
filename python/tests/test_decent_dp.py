"""The drop-in for decent-dp, against recorded runs of it and against its own classes."""

from __future__ import annotations

import functools
import json
import textwrap

import numpy as np
import pytest
import torch
from conftest import SHARED, alone, flat, loss_of, make_mlp, needs_mpi, rank, register, run_python

import gossamer as gs
from gossamer.compat.decent_dp import optim
from gossamer.compat.decent_dp.ddp import DecentralizedDataParallel
from gossamer.compat.decent_dp.topo import TopologyReg

CASES = sorted(path.parent for path in SHARED.glob("golden/*/case.json"))
needs_golden = pytest.mark.skipif(not CASES, reason="no recorded runs here")
CLASSES = {
    "accum_adam": (optim.AccumAdam, optim.optim_fn_accum_adam),
    "accum_adamw": (optim.AccumAdamW, optim.optim_fn_accum_adamw),
    "adam": (torch.optim.Adam, optim.optim_fn_adam),
    "adamw": (torch.optim.AdamW, optim.optim_fn_adamw),
    "sgd": (torch.optim.SGD, None),
}


class Recorded(torch.nn.Module):
    """Has the parameters of a recorded run, and any gradients in the recorded order."""

    def __init__(self, case, values):
        super().__init__()
        for p in case["params"]:
            own = values[p["offset"] : p["offset"] + p["numel"]].reshape(p["shape"])
            self.register_parameter(p["name"], torch.nn.Parameter(own.clone()))
        self.case = case

    def forward(self, gradient):
        loss = torch.zeros(())
        # Autograd begins with what has been made last.
        for i in reversed(self.case["order"]):
            p = self.case["params"][i]
            own = gradient[p["offset"] : p["offset"] + p["numel"]].reshape(p["shape"])
            loss = loss + (self.get_parameter(p["name"]) * own).sum()
        return loss


def optim_fn_of(case):
    given = dict(case["optim"])
    kind, helper = CLASSES[given.pop("type")]
    if given.pop("decay", "uniform") == "decent-dp":
        given["beta1"], given["beta2"] = given.pop("betas")
        return functools.partial(helper, lr=case["lr"], **given)
    return lambda named: kind([p for _, p in named], lr=case["lr"], **given)


def schedule_of(case):
    given = case["lr_schedule"]
    if given is None:
        return None
    given = dict(given)
    given["cosine_eta_min"] = given.pop("eta_min")
    return functools.partial(optim.lr_scheduler_fn_cosine_with_warmup, **given)


def replay(case, initial, gradients):
    """Return what a rank has after each step and in the end, and its distance from the mean."""
    module = Recorded(case, initial + rank())
    model = DecentralizedDataParallel(
        module,
        optim_fn_of(case),
        schedule_of(case),
        case["topology"],
        grad_clip_norm=case["grad_clip_norm"],
        bucket_size_in_mb=case["bucket_bytes"] / 2**20,
        _local_world_size=case["local_world_size"],
    )
    model.set_adaptive_factor(case["adaptive_factor"])
    num_parts = case["micro_batches"]
    after_steps = []
    for step in range(case["steps"]):
        for part in range(num_parts):
            model.set_accumulate_grad(part + 1 < num_parts)
            model(gradients[step * num_parts + part, rank()]).backward()
        after_steps.append(flat(model).clone())
        if step == 5:
            model.global_avg()
            model.revert_global_avg()
    distance = model.global_avg(return_d2c=True)
    mean = flat(model).clone()
    model.revert_global_avg()
    assert torch.equal(flat(model), after_steps[-1])
    return torch.stack(after_steps), mean, distance


@needs_golden
@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_recorded_runs(folder):
    case = json.loads((folder / "case.json").read_text())
    if case["topology"] not in TopologyReg.registry:
        register(
            case["topology"],
            [[(edge["ranks"], edge["weight"]) for edge in edges] for edges in case["edges"]],
        )
    # Not on the threads: CPython 3.11 reads the headers with a parser that is for one thread.
    initial, gradients, expected, final = (
        torch.from_numpy(np.load(folder / f"{name}.npy"))
        for name in ("init", "grads", "expected", "final_avg")
    )
    ends = gs.run_threads(case["world_size"], lambda: replay(case, initial, gradients))
    for r, (after_steps, mean, _) in enumerate(ends):
        assert (after_steps - expected[:, r]).abs().max() < 2e-6
        assert (mean - final).abs().max() < 2e-6
    assert ends[0][2] == pytest.approx(case["distance_to_center_rank0"], rel=1e-4, abs=2e-6)


def wrap(model=None, optim_fn=optim.optim_fn_accum_adamw, **options):
    return DecentralizedDataParallel(model or make_mlp(), optim_fn, **options)


def test_unknown_topologies_are_refused():
    with pytest.raises(KeyError, match="'rings' is not registered, allowed: complete, ring"):
        alone(lambda: wrap(topology="rings"))


def sgd(named):
    return torch.optim.SGD([p for _, p in named], lr=0.1)


def test_adaptive_factor_counts_for_exchanges_that_start_later():
    values = [1.0, 0.25, 0.0, 0.5, 1.0]

    def work():
        module = torch.nn.Linear(3, 1, bias=False)
        model = wrap(module, sgd, topology="ring")
        with torch.no_grad():
            module.weight.copy_(torch.full((1, 3), float(rank())))
        after_steps = []
        for factor in values:
            model.set_adaptive_factor(factor)
            model(torch.full((3,), float(rank()))).backward()
            after_steps.append(module.weight[0, 0].item())
        with pytest.raises(gs.ConfigError, match=r"adaptive_factor: 1\.5, allowed"):
            model.set_adaptive_factor(1.5)
        return after_steps

    actual = np.array(gs.run_threads(4, work)).T
    ring = gs.topology("ring", 4)
    gradient = np.arange(4.0)
    expected = np.arange(4.0) - 0.1 * gradient
    assert np.allclose(actual[0], expected)
    for step, edge in [(1, 1), (2, 3), (3, 4), (4, 5)]:
        share = values[step - 1]
        expected = (1 - share) * expected + share * ring.matrix(edge) @ expected - 0.1 * gradient
        assert np.allclose(actual[step], expected, atol=1e-6), step


def test_registered_topologies_mix_as_their_edges_say():
    pairs, others = [([0, 1], 0.75), ([2, 3], 0.75)], [([0, 3], 0.5), ([1, 2], 0.5)]
    steps = [[([0, 1, 2, 3], 0.25)], pairs, others, [([0, 1, 3], 0.5), ([2], 1.0)]]
    register("mine", steps)

    def work():
        module = torch.nn.Linear(3, 1, bias=False)
        model = wrap(module, sgd, topology="mine")
        with torch.no_grad():
            module.weight.copy_(torch.full((1, 3), float(rank())))
        after_steps = []
        for _ in range(7):
            (model(torch.zeros(3))).backward()
            after_steps.append(module.weight[0, 0].item())
        return after_steps

    actual = np.array(gs.run_threads(4, work)).T
    expected = np.arange(4.0)
    for step, launched in enumerate([None, 1, 3, 0, 1, 2, 3]):
        before = expected.copy()
        for ranks, weight in steps[launched] if launched is not None else []:
            for i in ranks:
                rest = [before[j] for j in ranks if j != i]
                expected[i] = weight * before[i] + (1 - weight) * (np.mean(rest) if rest else 0.0)
        assert np.allclose(actual[step], expected, atol=1e-6), step


def test_averages_end_later_or_never():
    def work():
        model = wrap(topology="ring")
        with pytest.raises(RuntimeError, match="without a global_avg"):
            model.revert_global_avg()
        for step in range(3):
            loss_of(model, rank(), step).backward()
        own = flat(model)
        assert model.global_avg() is None
        mean = flat(model)
        loss_of(model, rank(), 3).backward()
        trained = flat(model)
        model.revert_global_avg()
        reverted = flat(model)
        distance = model.global_avg(will_revert=False, return_d2c=True)
        loss_of(model, rank(), 4).backward()
        return own, mean, trained, reverted, distance

    ends = gs.run_threads(4, work)
    mean = sum(own for own, *_ in ends) / 4
    for own, averaged, trained, reverted, distance in ends:
        assert (averaged - mean).abs().max() < 1e-6
        assert 0 < (trained - averaged).abs().max() < 0.01
        assert torch.equal(reverted, own)
        assert distance == pytest.approx((own - mean).norm().item(), rel=1e-4)


@pytest.mark.parametrize("averages", [False, True])
def test_buffers_are_averaged_if_asked(averages):
    def work():
        norm = torch.nn.BatchNorm1d(8)
        model = wrap(torch.nn.Sequential(norm, make_mlp()), sync_buffer_in_global_avg=averages)
        loss_of(model, rank(), 0).backward()
        own = norm.running_mean.clone()
        model.global_avg()
        return own, norm.running_mean.clone()

    (a, a_after), (b, b_after) = gs.run_threads(2, work)
    assert torch.allclose(a_after, (a + b) / 2 if averages else a)
    assert torch.allclose(b_after, (a + b) / 2 if averages else b)


def test_rates_are_those_of_the_schedule():
    def work():
        schedule = functools.partial(
            optim.lr_scheduler_fn_cosine_with_warmup, t_max=8, t_warmup=4, warmup_decay=0.5
        )
        model = wrap(lr_scheduler_fn=schedule)
        rates = [model.get_lr()]
        for step in range(3):
            loss = loss_of(model, rank(), step)
            rates.append(model.get_lr())
            loss.backward()
        assert rates == pytest.approx([0.0, 0.0, 0.625e-3, 0.75e-3])
        plain = wrap()
        assert plain.get_lr() == 0.0
        for step in range(2):
            loss_of(plain, rank(), step).backward()
        with pytest.raises(AssertionError, match="without lr_scheduler_fn"):
            plain.get_lr()

    gs.run_threads(2, work)


def test_the_scaler_is_updated():
    def work(is_scaled):
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0) if is_scaled else None
        model = wrap(optim_fn=sgd, topology="one-peer-exp", scaler=scaler)
        for step in range(6):
            loss = loss_of(model, rank(), step)
            if scaler is None:
                (0.0 * loss if step == 3 else loss).backward()
                continue
            if step == 3 and rank() == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            assert scaler.get_scale() == (256.0 if step < 3 else 128.0)
        return flat(model)

    plain = gs.run_threads(4, lambda: work(False))
    scaled = gs.run_threads(4, lambda: work(True))
    for a, b in zip(plain, scaled, strict=True):
        assert (a - b).abs().max() < 1e-6


def test_names_and_modes_are_decent_dps():
    def work():
        module = make_mlp()
        model = wrap(module)
        names = [f"_model.{name}" for name in module.state_dict()]
        assert list(model.state_dict()) == names
        assert [name for name, _ in model.named_parameters()] == names
        assert next(iter(model.parameters())) is module[0].weight
        assert model.eval() is model
        assert not module.training
        assert model.train() is model
        assert module.training

    alone(work)


SCRIPT = textwrap.dedent(
    """
    import functools
    import torch
    import torch.distributed as dist
    from gossamer.compat.decent_dp.ddp import DecentralizedDataParallel
    from gossamer.compat.decent_dp.optim import optim_fn_accum_adamw
    from gossamer.compat.decent_dp.utils import initialize_dist

    rank, world_size = initialize_dist()
    torch.manual_seed(rank)
    model = DecentralizedDataParallel(
        torch.nn.Linear(8, 3), functools.partial(optim_fn_accum_adamw, lr=1e-2), topology="complete"
    )
    for step in range(30):
        x = torch.randn(16, 8).to(next(model.parameters()).device)
        loss = (model(x) - x[:, :3]).square().mean()
        model.zero_grad()
        loss.backward()
    distance = model.global_avg(return_d2c=True)
    total = sum(p.sum() for p in model.parameters())
    print(f"rank {rank} of {world_size}: {distance < 0.1} {total:.6f}", flush=True)
    model.revert_global_avg()
    ranks = torch.tensor([dist.get_rank(), dist.get_world_size()])
    dist.all_reduce(ranks)
    assert ranks.tolist() == [sum(range(world_size)), world_size**2]
    dist.barrier()
    """
)


@needs_mpi
def test_a_script_runs_under_mpirun(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    done = run_python([str(path)], 2)
    assert done.returncode == 0, done.stderr
    lines = [line.split(": ") for line in sorted(done.stdout.splitlines())]
    assert [line[0] for line in lines] == ["rank 0 of 2", "rank 1 of 2"]
    assert lines[0][1].startswith("True")
    assert lines[0][1] == lines[1][1]
    assert done.stderr == ""


def test_a_script_runs_alone(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    done = run_python([str(path)])
    assert done.stdout.startswith("rank 0 of 1: True"), done.stderr
    assert done.returncode == 0
