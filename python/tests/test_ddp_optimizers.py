"""The user's optimizers under the drop-in for DistributedDataParallel."""

from __future__ import annotations

import copy

import pytest
import torch
from conftest import flat, loss_of, make_mlp, rank

import gossamer as gs
from gossamer.compat.ddp import DistributedDataParallel

GOSSIP = {"algorithm": "gossip", "topology": "ring"}


def sgd(parameters, **options):
    return torch.optim.SGD(parameters, lr=0.1, **options)


def simulate(num_ranks, kinds, num_steps):
    """Train all ranks of a ring in one process; every step() of an optimizer first mixes."""
    ring = gs.topology("ring", num_ranks)
    models = [make_mlp() for _ in range(num_ranks)]
    optimizers = [kinds(model) for model in models]
    num_mixed = -1
    for step in range(num_steps):
        for k in range(len(optimizers[0])):
            for r, model in enumerate(models):
                model.zero_grad()
                loss_of(model, r, step).backward()
            if num_mixed >= 0:
                mix(models, torch.tensor(ring.matrix(num_mixed), dtype=torch.float32))
            num_mixed += 1
            for own in optimizers:
                own[k].step()
    return models


def mix(models, weights):
    with torch.no_grad():
        for parameters in zip(*(model.parameters() for model in models), strict=True):
            mixed = torch.tensordot(weights, torch.stack([p.data for p in parameters]), 1)
            for p, value in zip(parameters, mixed, strict=True):
                p.copy_(value)


def two_kinds(model):
    net = model.module if isinstance(model, DistributedDataParallel) else model
    return [sgd(net[0].parameters(), momentum=0.9), torch.optim.AdamW(net[2].parameters(), 0.01)]


def test_each_of_several_optimizers_mixes_and_updates_its_parameters():
    def work():
        model = DistributedDataParallel(make_mlp(), **GOSSIP, bucket_cap_mb=1e-5)
        optimizers = two_kinds(model)
        for step in range(4):
            for optimizer in optimizers:
                model.zero_grad()
                loss_of(model, rank(), step).backward()
                optimizer.step()
        assert model.metrics()["steps"] == 8
        model.finish()
        return flat(model).clone()

    for end, expected in zip(gs.run_threads(3, work), simulate(3, two_kinds, 4), strict=True):
        assert (end - flat(expected)).abs().max() < 1e-6


def test_gradients_of_another_optimizers_parameters_stay():
    def work():
        model = DistributedDataParallel(make_mlp(), **GOSSIP)
        first, second = two_kinds(model)
        loss_of(model, rank(), 0).backward()
        kept = [p.grad.clone() for p in model.module[2].parameters()]
        before = [p.clone() for p in model.module[2].parameters()]
        first.step()
        for p, grad, value in zip(model.module[2].parameters(), kept, before, strict=True):
            assert torch.equal(p.grad, grad)
            assert torch.equal(p, value)
        second.step()

    gs.run_threads(2, work)


def test_a_new_optimizer_goes_on_with_another_ones_state():
    def work():
        model = DistributedDataParallel(make_mlp(), **GOSSIP)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for step in range(6):
            if step == 3:
                state = copy.deepcopy(optimizer.state_dict())
                optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
                optimizer.load_state_dict(state)
            optimizer.zero_grad()
            loss_of(model, rank(), step).backward()
            optimizer.step()
        model.finish()
        return flat(model).clone()

    def adamw(model):
        return [torch.optim.AdamW(model.parameters(), lr=0.01)]

    for end, expected in zip(gs.run_threads(2, work), simulate(2, adamw, 6), strict=True):
        assert (end - flat(expected)).abs().max() < 1e-6


def test_a_step_that_a_library_has_taken_before_still_mixes():
    """Accelerate keeps the bound method of an optimizer from before the first step."""

    def work():
        model = DistributedDataParallel(make_mlp(), **GOSSIP)
        optimizer = sgd(model.parameters())
        taken = optimizer.step
        for step in range(4):
            optimizer.step = lambda: taken()
            optimizer.zero_grad()
            loss_of(model, rank(), step).backward()
            optimizer.step()
        assert model.metrics()["steps"] == 4
        model.finish()
        return flat(model).clone()

    expected = simulate(2, lambda model: [sgd(model.parameters())], 4)
    for end, model in zip(gs.run_threads(2, work), expected, strict=True):
        assert (end - flat(model)).abs().max() < 1e-6


def test_finish_gives_the_step_back():
    def work():
        model = DistributedDataParallel(make_mlp(), **GOSSIP)
        optimizer = sgd(model.parameters())
        loss_of(model, rank(), 0).backward()
        optimizer.step()
        model.finish()
        plain = copy.deepcopy(model.module)
        for net, own in ((model.module, optimizer), (plain, sgd(plain.parameters()))):
            own.zero_grad()
            loss_of(net, rank(), 1).backward()
            own.step()
        assert torch.equal(flat(model.module), flat(plain))
        again = DistributedDataParallel(model.module, **GOSSIP)
        loss_of(again, rank(), 2).backward()
        optimizer.step()
        assert again.metrics()["steps"] == 1

    gs.run_threads(2, work)


def test_an_optimizer_of_other_parameters_as_well_is_refused():
    def work():
        model = DistributedDataParallel(make_mlp(), **GOSSIP)
        optimizer = sgd([*model.parameters(), *make_mlp().parameters()])
        loss_of(model, rank(), 0).backward()
        before = flat(model).clone()
        try:
            optimizer.step()
        finally:
            assert torch.equal(before, flat(model))

    with pytest.raises(gs.ConfigError, match="has 4 parameters that are not of this model"):
        gs.run_threads(1, work)


def test_lbfgs_is_refused_where_every_step_mixes():
    def work():
        model = DistributedDataParallel(make_mlp(), **GOSSIP)
        torch.optim.LBFGS(model.parameters()).step(lambda: loss_of(model, rank(), 0))

    with pytest.raises(gs.ConfigError, match="LBFGS calls its closure several times in a step"):
        gs.run_threads(1, work)


class Lookahead(torch.optim.Optimizer):
    """Moves slow copies of the parameters half way to another optimizer's after two steps."""

    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, inner.defaults)
        self.param_groups = inner.param_groups
        self.num_steps = 0
        self.slow = [p.detach().clone() for p in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        loss = self.inner.step(closure)
        self.num_steps += 1
        if self.num_steps % 2 == 0:
            for p, slow in zip(self.param_groups[0]["params"], self.slow, strict=True):
                p.copy_(slow.lerp_(p, 0.5))
        return loss


def step_with_lookahead(options):
    model = DistributedDataParallel(make_mlp(), **options)
    optimizer = Lookahead(sgd(model.parameters()))
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, 0, step).backward()
        optimizer.step()
    return flat(model).clone()


def test_an_optimizer_that_holds_another_one_is_refused_under_gossip():
    message = "Lookahead holds another one, SGD, in its attribute inner"
    with pytest.raises(gs.ConfigError, match=message):
        gs.run_threads(2, lambda: step_with_lookahead(GOSSIP))


def test_an_optimizer_that_holds_another_one_trains_under_allreduce():
    net = make_mlp()
    optimizer = Lookahead(sgd(net.parameters()))
    for step in range(4):
        optimizer.zero_grad()
        loss_of(net, 0, step).backward()
        optimizer.step()
    for end in gs.run_threads(2, lambda: step_with_lookahead({})):
        assert (end - flat(net)).abs().max() < 1e-6


class CallsTwice(torch.optim.SGD):
    """Takes its gradients at a second point, as sharpness-aware minimization does."""

    def step(self, closure):
        torch.enable_grad()(closure)()
        return super().step()


def test_an_optimizer_that_needs_a_closure_is_refused_under_gossip():
    def work():
        model = DistributedDataParallel(make_mlp(), **GOSSIP)
        CallsTwice(model.parameters(), lr=0.1).step(lambda: loss_of(model, rank(), 0).backward())

    with pytest.raises(gs.ConfigError, match="CallsTwice calls its closure several times"):
        gs.run_threads(1, work)


WRAPPERS = {
    "the drop-in": lambda: DistributedDataParallel(make_mlp()),
    "the library's own": lambda: gs.DecentralizedDataParallel(make_mlp(), sgd),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_pytorchs_wrapper_around_this_ones_is_refused(tmp_path, wrapper):
    def work():
        torch.nn.parallel.DistributedDataParallel(WRAPPERS[wrapper]())

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        with pytest.raises(gs.ConfigError, match="GossamerAccelerator wraps the plain module"):
            gs.run_threads(1, work)
    finally:
        torch.distributed.destroy_process_group()


def test_sharding_the_librarys_own_wrapper_is_refused():
    """fully_shard() gives a module a class that is derived from its own and from FSDPModule."""
    mixin = type("FSDPModule", (), {})
    with pytest.raises(gs.ConfigError, match=r"fully_shard\(\) shards a module"):
        type("FSDPDecentralizedDataParallel", (mixin, gs.DecentralizedDataParallel), {})


# Parameters that are trained later.


@pytest.mark.parametrize("options", [{}, GOSSIP], ids=["allreduce", "gossip"])
def test_a_layer_that_is_added_later_begins_with_rank_0s_values(options):
    def work():
        net = make_mlp()
        model = DistributedDataParallel(net, **options)
        optimizer = sgd(net.parameters(), momentum=0.9)
        for step in range(6):
            if step == 3:
                net[2] = torch.nn.Linear(16, 3)
                for p in net[2].parameters():
                    torch.nn.init.constant_(p, 0.1 * (1 + rank()))
                optimizer.add_param_group({"params": net[2].parameters()})
            optimizer.zero_grad()
            loss_of(model, rank(), step).backward()
            optimizer.step()
        with model.global_average() as distance:
            mean = flat(model).clone()
        own = torch.cat([p.detach().flatten() for p in net[2].parameters()]).clone()
        return mean, own, distance

    ends = gs.run_threads(2, work)
    assert torch.equal(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1]) == (not options)
    assert (ends[0][2] > 0) == bool(options)
    assert (ends[0][1] - ends[1][1]).abs().max() < 0.5, "the ranks mix what they train"


def test_unfrozen_layers_under_all_reduce_are_trained_as_all_batches():
    def train(model, ranks):
        net = model.module if isinstance(model, DistributedDataParallel) else model
        optimizer = sgd(net.parameters(), momentum=0.9)
        for step in range(6):
            net[0].requires_grad_(step >= 3)
            optimizer.zero_grad()
            torch.stack([loss_of(model, r, step) for r in ranks]).mean().backward()
            optimizer.step()
        return flat(net).clone()

    def frozen():
        net = make_mlp()
        net[0].requires_grad_(False)
        return net

    def work():
        return train(DistributedDataParallel(frozen()), [rank()])

    expected = train(frozen(), range(2))
    for end in gs.run_threads(2, work):
        assert (end - expected).abs().max() < 1e-6
