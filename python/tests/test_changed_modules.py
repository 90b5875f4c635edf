"""Parameters that a module gets, or that begin to require gradients, after it was wrapped."""

from __future__ import annotations

import warnings

import pytest
import torch
from conftest import alone, flat, loss_of, make_mlp, rank
from test_optimizers import IN_PYTHON, OPTIMIZERS, largest_difference

import gossamer as gs
from gossamer.compat.ddp import DistributedDataParallel

ADAMW = OPTIMIZERS["adamw"]
NUM_STEPS = 8


def frozen_mlp():
    model = make_mlp()
    model[0].requires_grad_(False)
    return model


def head():
    new = torch.nn.Linear(16, 3)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in new.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=generator))
    return new


def unfreeze(model, optimizer, groups):
    model[0].requires_grad_(True)
    if groups:
        optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.003})


def replace_head(model, optimizer, groups):
    model[2] = head()
    optimizer.add_param_group({"params": list(model[2].parameters())})


def add_layer(model, optimizer, groups):
    model.append(torch.nn.Linear(3, 3, bias=False))
    with torch.no_grad():
        model[-1].weight.copy_(torch.eye(3))
    optimizer.add_param_group({"params": list(model[-1].parameters())})


CHANGES = {
    "unfrozen": (unfreeze, False),
    "unfrozen, new group": (unfreeze, True),
    "replaced": (replace_head, True),
    "added": (add_layer, True),
}


def run(change, optim_fn, wrap):
    """Train, change the model before the fourth step, and go on."""
    act, groups = CHANGES[change]
    model = frozen_mlp() if act is unfreeze else make_mlp()
    own = [p for p in model.parameters() if p.requires_grad or not groups]
    optimizer = optim_fn(own)
    stepped, makes_step = wrap(model, optimizer)
    for step in range(NUM_STEPS):
        if step == 3:
            act(model, optimizer, groups)
        if makes_step:
            optimizer.zero_grad()
        loss_of(stepped, 0, step).backward()
        if makes_step:
            optimizer.step()
    if hasattr(stepped, "finish"):
        assert stepped.metrics()["steps"] == NUM_STEPS
        stepped.finish()
    return flat(model).clone()


def plain(model, optimizer):
    return model, True


@pytest.mark.parametrize("name", ["adamw", "momentum", "rmsprop"])
@pytest.mark.parametrize("change", CHANGES)
def test_they_are_trained_from_the_next_step_on(change, name):
    optim_fn = (OPTIMIZERS | IN_PYTHON)[name]

    def native(model, optimizer):
        wrapper = gs.DecentralizedDataParallel(model, optimizer, bucket_size_in_mb=1e-5)
        return wrapper, False

    actual = alone(lambda: run(change, optim_fn, native))
    assert largest_difference(actual, run(change, optim_fn, plain)) < 5e-7


@pytest.mark.parametrize("algorithm", ["allreduce", "gossip"])
@pytest.mark.parametrize("change", CHANGES)
def test_the_drop_in_trains_them(change, algorithm):
    def drop_in(model, optimizer):
        topology = {"topology": "ring"} if algorithm == "gossip" else {}
        return DistributedDataParallel(model, algorithm=algorithm, **topology), True

    expected = run(change, ADAMW, plain)
    # All ranks have the same data, so that mixing changes nothing.
    for end in gs.run_threads(2, lambda: run(change, ADAMW, drop_in)):
        assert largest_difference(end, expected) < 5e-7


def test_ranks_mix_what_they_train_later():
    def work():
        model = frozen_mlp()
        optimizer = ADAMW(list(model.parameters()))
        wrapper = gs.DecentralizedDataParallel(model, optimizer, "complete")
        for step in range(3):
            loss_of(wrapper, rank(), step).backward()
        start = model[0].weight.detach().clone()
        model[0].requires_grad_(True)
        for step in range(3, 6):
            loss_of(wrapper, rank(), step).backward()
        assert wrapper.metrics()["bytes_sent"] > 0
        assert not torch.equal(model[0].weight, start)
        with wrapper.global_average() as distance:
            assert distance > 0
            mean = flat(model).clone()
        wrapper.finish()
        return mean

    first, *others = gs.run_threads(4, work)
    for mean in others:
        assert torch.equal(mean, first)


def test_the_state_that_was_loaded_for_them_counts():
    def end(wraps):
        model = frozen_mlp()
        optimizer = ADAMW(list(model.parameters()))
        for p in model[0].parameters():
            optimizer.state[p] = {
                "step": torch.tensor(5.0),
                "exp_avg": torch.full_like(p, 0.1),
                "exp_avg_sq": torch.full_like(p, 0.2),
            }
        model_or_wrapper = gs.DecentralizedDataParallel(model, optimizer) if wraps else model
        for step in range(5):
            if step == 2:
                model[0].requires_grad_(True)
            if not wraps:
                optimizer.zero_grad()
            loss_of(model_or_wrapper, 0, step).backward()
            if not wraps:
                optimizer.step()
        assert optimizer.state_dict()["state"][0]["step"].item() == 8
        return flat(model).clone()

    assert largest_difference(alone(lambda: end(True)), end(False)) < 5e-7


def test_what_the_optimizer_lacks_is_named_once():
    def work():
        model = frozen_mlp()
        wrapper = gs.DecentralizedDataParallel(model, ADAMW)
        loss_of(wrapper, 0, 0).backward()
        model[0].requires_grad_(True)
        with pytest.warns(
            UserWarning, match=r"2 parameters.*0\.weight, 0\.bias.*add_param"
        ) as all_:
            for step in range(1, 4):
                loss_of(wrapper, 0, step).backward()
        assert len(all_) == 1
        before = model[0].weight.detach().clone()
        wrapper.optimizer.add_param_group({"params": list(model[0].parameters())})
        loss_of(wrapper, 0, 4).backward()
        assert not torch.equal(model[0].weight, before)

    alone(work)


def load_by_assigning(model):
    model.load_state_dict({k: 0.5 * v for k, v in model.state_dict().items()}, assign=True)


def test_all_reduce_refuses_an_optimizer_of_parameters_that_were_replaced():
    def work():
        net = make_mlp()
        model = DistributedDataParallel(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            if step == 2:
                load_by_assigning(net)
            loss_of(model, rank(), step).backward()
            if step < 2:
                optimizer.step()
        before = flat(net).clone()
        with pytest.raises(
            gs.ConfigError, match=r"names 0\.weight, 0\.bias, 2\.weight, 2\.bias: .*"
        ):
            optimizer.step()
        assert torch.equal(flat(net), before)

    gs.run_threads(2, work)


def test_all_reduce_trains_parameters_that_were_replaced_with_a_new_optimizer():
    def train(wrap):
        net = make_mlp()
        model = wrap(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(6):
            if step in (2, 4):
                load_by_assigning(net)
                if step == 2:
                    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                else:
                    optimizer.add_param_group({"params": list(model.parameters())})
            optimizer.zero_grad()
            loss_of(model, 0, step).backward()
            optimizer.step()
        return flat(net).clone()

    expected = train(lambda net: net)
    for end in gs.run_threads(2, lambda: train(DistributedDataParallel)):
        assert largest_difference(end, expected) < 5e-7


@pytest.mark.parametrize("algorithm", ["allreduce", "gossip"])
def test_the_drop_in_names_what_no_optimizer_gets_in_ten_steps(algorithm):
    def work():
        model = frozen_mlp()
        topology = {"topology": "ring"} if algorithm == "gossip" else {}
        wrapper = DistributedDataParallel(model, algorithm=algorithm, **topology)
        optimizer = ADAMW(list(model[2].parameters()))

        def step(number):
            optimizer.zero_grad()
            loss_of(wrapper, 0, number).backward()
            optimizer.step()

        step(0)
        model[0].requires_grad_(True)
        for number in range(1, 10):
            step(number)
        with pytest.warns(
            UserWarning, match=r"2 parameters.*0\.weight, 0\.bias.*add_param"
        ) as all_:
            for number in range(10, 30):
                step(number)
        assert len(all_) == 1

    alone(work)


@pytest.mark.parametrize("algorithm", ["allreduce", "gossip"])
def test_the_drop_in_does_not_name_what_a_second_optimizer_has(algorithm):
    def work():
        model = frozen_mlp()
        topology = {"topology": "ring"} if algorithm == "gossip" else {}
        wrapper = DistributedDataParallel(model, algorithm=algorithm, **topology)
        optimizers = [ADAMW(list(part.parameters())) for part in (model[2], model[0])]
        model[0].requires_grad_(True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for number in range(30):
                optimizer = optimizers[number % 5 == 4]
                optimizer.zero_grad()
                loss_of(wrapper, 0, number).backward()
                optimizer.step()

    alone(work)


def test_gossip_mixes_what_an_optimizer_of_its_own_trains_later():
    def work():
        model = frozen_mlp()
        wrapper = DistributedDataParallel(model, algorithm="gossip", topology="complete")
        optimizers = [ADAMW(list(model[2].parameters()))]
        for step in range(8):
            if step == 3:
                model[0].requires_grad_(True)
                optimizers.append(ADAMW(list(model[0].parameters())))
            wrapper.zero_grad()
            loss_of(wrapper, rank(), step).backward()
            for optimizer in optimizers:
                optimizer.step()
        assert wrapper.metrics()["steps"] == 13, "each optimizer's step mixes"
        with wrapper.global_average():
            return model[0].weight.detach().clone()

    first, second = gs.run_threads(2, work)
    assert torch.equal(first, second)


def test_parameters_of_nobody_are_refused_later_too():
    def work():
        wrapper = gs.DecentralizedDataParallel(make_mlp(), ADAMW)
        loss_of(wrapper, 0, 0).backward()
        wrapper.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})
        loss_of(wrapper, 0, 1).backward()

    with pytest.raises(gs.ConfigError, match=r"that the module has not.*1\.0 \[3\]"):
        alone(work)


@pytest.mark.parametrize("options", [{"algorithm": "gradient_tracking"}, {"codec": "int8"}])
def test_they_are_refused_where_others_have_more_state(options):
    refuses_later_parameters("ring", [20, 20], **options)


def test_asynchronous_ranks_refuse_them_while_others_still_make_steps():
    algorithm = {"name": "async_gossip", "max_staleness": 1}
    # Rank 0 then waits in its step for rank 1, which makes no further one.
    refuses_later_parameters("ring", [20, 10], algorithm=algorithm)


def refuses_later_parameters(topology, num_steps, **options):
    def work():
        model = frozen_mlp()
        optimizer = ADAMW(list(model.parameters()))
        wrapper = gs.DecentralizedDataParallel(model, optimizer, topology, **options)
        for step in range(num_steps[rank()]):
            loss_of(wrapper, rank(), step).backward()
        model[0].requires_grad_(True)
        loss_of(wrapper, rank(), 20).backward()

    with pytest.raises(gs.ConfigError, match="wrap the module again"):
        gs.run_threads(2, work, timeout_s=60)


class Half(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = make_mlp(), torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.used(x)


def test_parameters_without_gradients_are_named_once():
    def work():
        wrapper = gs.DecentralizedDataParallel(Half(), ADAMW)
        with pytest.warns(UserWarning, match=r"2 of 6 parameters.*unused\.weight") as caught:
            for step in range(25):
                loss_of(wrapper, 0, step).backward()
        assert len(caught) == 1

    alone(work)
