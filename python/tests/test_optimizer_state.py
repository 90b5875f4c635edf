"""The state of PyTorch's optimizer goes into the engine, and comes out of it."""

from __future__ import annotations

import copy

import pytest
import torch
from conftest import alone, flat, loss_of, make_mlp, rank
from test_models import AsDouble
from test_optimizers import OPTIMIZERS, largest_difference

import gossamer as gs
from gossamer.compat.decent_dp.optim import AccumAdam, AccumAdamW

ADAMW = OPTIMIZERS["adamw"]
ENGINE = OPTIMIZERS | {
    "accum adam": lambda ps: AccumAdam(ps, lr=0.01, weight_decay=0.1, accum_iter=3),
    "accum adamw": lambda ps: AccumAdamW(ps, lr=0.01, weight_decay=0.1, accum_iter=3),
    "amsgrad": lambda ps: torch.optim.AdamW(ps, lr=0.01, amsgrad=True),
}


def train_plain(model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, 0, step).backward()
        optimizer.step()


def train(wrapper, steps):
    for step in steps:
        loss_of(wrapper, 0, step).backward()


def plain_run(optim_fn, num_steps, model=None):
    model = make_mlp() if model is None else model
    optimizer = optim_fn(list(model.parameters()))
    train_plain(model, optimizer, range(num_steps))
    return model, optimizer


def assert_same_state(own, expected):
    """Compare state dicts of optimizers: names, shapes, strides, types, and values."""
    assert own["state"].keys() == expected["state"].keys()
    for i, entry in expected["state"].items():
        assert own["state"][i].keys() == entry.keys()
        for key, value in entry.items():
            found = own["state"][i][key]
            assert found.dtype == value.dtype, key
            assert found.shape == value.shape
            assert found.stride() == value.stride()
            assert torch.allclose(found, value, rtol=1e-4, atol=1e-6), key


@pytest.mark.parametrize("when", ["trained", "loaded before", "loaded after", "later"])
@pytest.mark.parametrize("name", ENGINE)
def test_a_state_is_taken_in_and_given_out(name, when):
    optim_fn = ENGINE[name]
    # The accumulating optimizers are in the middle of a cycle after 4 steps, at an end after 9.
    expected, plain = plain_run(optim_fn, 9)

    def work():
        model, optimizer = plain_run(optim_fn, 4)
        saved = copy.deepcopy(optimizer.state_dict())
        if when != "trained":
            optimizer = optim_fn(list(model.parameters()))
        if when == "loaded before":
            optimizer.load_state_dict(saved)
        values = [p.detach().clone() for p in model.parameters()]
        wrapper = gs.DecentralizedDataParallel(model, optimizer, bucket_size_in_mb=1e-5)
        if when == "later":
            train(wrapper, range(20, 23))
            with wrapper.write_parameters(), torch.no_grad():
                for p, value in zip(model.parameters(), values, strict=True):
                    p.copy_(value)
        if when in ("loaded after", "later"):
            optimizer.load_state_dict(saved)
        train(wrapper, range(4, 9))
        assert_same_state(optimizer.state_dict(), plain.state_dict())
        return flat(model).clone()

    assert largest_difference(alone(work), flat(expected)) < 5e-7


@pytest.mark.parametrize("name", ENGINE)
def test_the_usual_checkpoint_goes_on_as_pytorch_does(tmp_path, name):
    optim_fn = ENGINE[name]
    expected, plain = plain_run(optim_fn, 9)
    path = tmp_path / "usual.pt"

    def first():
        model = make_mlp()
        wrapper = gs.DecentralizedDataParallel(model, optim_fn, "ring")
        train(wrapper, range(4))
        torch.save({"model": model.state_dict(), "opt": wrapper.optimizer.state_dict()}, path)
        wrapper.finish()
        # Also when the engine is gone.
        again = copy.deepcopy(wrapper.optimizer.state_dict())
        assert_same_state(again, torch.load(path, weights_only=True)["opt"])

    alone(first)
    saved = torch.load(path, weights_only=True)

    def goes_on(wraps):
        model = make_mlp()
        model.load_state_dict(saved["model"])
        optimizer = optim_fn(list(model.parameters()))
        optimizer.load_state_dict(copy.deepcopy(saved["opt"]))
        if wraps:
            train(gs.DecentralizedDataParallel(model, optimizer, "ring"), range(4, 9))
        else:
            train_plain(model, optimizer, range(4, 9))
        assert_same_state(optimizer.state_dict(), plain.state_dict())
        return flat(model).clone()

    for end in (alone(lambda: goes_on(True)), goes_on(False)):
        assert largest_difference(end, flat(expected)) < 5e-7


def test_a_state_is_live():
    def work():
        model = make_mlp()
        wrapper = gs.DecentralizedDataParallel(model, ADAMW)
        optimizer = wrapper.optimizer
        assert optimizer.state_dict()["state"] == {}
        train(wrapper, range(1))
        p = model[0].weight
        moment = optimizer.state[p]["exp_avg"]
        before = moment.clone()
        train(wrapper, range(1, 3))
        assert not torch.equal(moment, before)
        assert optimizer.state[p]["exp_avg"] is moment
        assert optimizer.state[p]["step"].item() == 3
        # What is written in place counts, too.
        optimizer.state[p]["step"].fill_(10.0)
        moment.zero_()
        train(wrapper, range(3, 4))
        assert optimizer.state[p]["step"].item() == 11
        gradient_part = optimizer.state[p]["exp_avg"].abs().max()
        assert gradient_part < before.abs().max()

    alone(work)


def test_an_emptied_state_begins_anew():
    expected, _ = plain_run(ADAMW, 3)

    def work():
        model = make_mlp()
        wrapper = gs.DecentralizedDataParallel(model, ADAMW)
        train(wrapper, range(20, 24))
        with wrapper.write_parameters(), torch.no_grad():
            for p, value in zip(model.parameters(), make_mlp().parameters(), strict=True):
                p.copy_(value)
        wrapper.optimizer.state.clear()
        train(wrapper, range(3))
        assert wrapper.optimizer.state[model[0].weight]["step"].item() == 3
        return flat(model).clone()

    assert largest_difference(alone(work), flat(expected)) < 5e-7


def test_a_state_of_bfloat16_parameters_keeps_the_masters_precision():
    def make():
        return AsDouble(make_mlp().to(torch.bfloat16))

    def work():
        model = make()
        wrapper = gs.DecentralizedDataParallel(model, ADAMW)
        train(wrapper, range(4))
        saved = copy.deepcopy(wrapper.optimizer.state_dict())
        assert saved["state"][0]["exp_avg"].dtype == torch.float32
        assert saved["state"][0]["exp_avg_sq"].shape == (16, 8)
        other = make()
        again = gs.DecentralizedDataParallel(other, ADAMW)
        again.optimizer.load_state_dict(saved)
        train(again, range(1))
        # Loading has not rounded to the parameters' type: the old moments are one step old.
        changed = again.optimizer.state_dict()["state"][0]
        assert changed["step"].item() == 5
        # PyTorch takes them as well, and rounds.
        plain = ADAMW(list(make().parameters()))
        plain.load_state_dict(saved)
        again.optimizer.load_state_dict(saved)
        entry = again.optimizer.state[next(iter(other.parameters()))]
        assert torch.equal(entry["exp_avg"], saved["state"][0]["exp_avg"])

    alone(work)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.NAdam], ids=["engine", "Python"])
@pytest.mark.parametrize("when", ["before wrapping", "while wrapped"])
def test_loaded_states_of_bfloat16_parameters_are_not_rounded(kind, when):
    """Without a gradient, a step multiplies the first moment by 0.9. bfloat16 has no 0.3."""

    def work():
        net = make_mlp().bfloat16()
        x = torch.ones(4, 8, dtype=torch.bfloat16)
        optimizer = kind(net.parameters(), lr=0.0)
        (0 * net(x).sum()).backward()
        optimizer.step()
        saved = copy.deepcopy(optimizer.state_dict())
        for entry in saved["state"].values():
            entry["exp_avg"] = torch.full_like(entry["exp_avg"], 0.3, dtype=torch.float32)
        if when == "before wrapping":
            optimizer.load_state_dict(saved)
        model = gs.DecentralizedDataParallel(net, optimizer)
        if when == "while wrapped":
            optimizer.load_state_dict(saved)
        (0 * model(x).sum()).backward()
        for p in net.parameters():
            found = optimizer.state[p]["exp_avg"]
            torch.testing.assert_close(found, torch.full_like(p, 0.27, dtype=torch.float32))

    alone(work)


class Unused(torch.nn.Module):
    """A model whose second part may be left out, and whose third is frozen."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = make_mlp(), torch.nn.Linear(3, 3), make_mlp()
        self.third.requires_grad_(False)
        self.uses_second = False
        generator = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for p in self.second.parameters():
                p.copy_(0.3 * torch.randn(p.shape, generator=generator))

    def forward(self, x):
        y = self.first(x) + self.third(x)
        return self.second(y) if self.uses_second else y


def test_parameters_that_are_frozen_or_have_no_gradient_have_no_state():
    def end(wraps):
        model = Unused()
        optimizer = ADAMW(list(model.parameters()))
        stepped = gs.DecentralizedDataParallel(model, optimizer) if wraps else model
        for step in range(6):
            model.uses_second = step in (3, 4)
            if wraps:
                train(stepped, range(step, step + 1))
            else:
                train_plain(model, optimizer, range(step, step + 1))
            if step == 2:
                assert sorted(optimizer.state_dict()["state"]) == [0, 1, 2, 3]
        return optimizer.state_dict(), flat(model).clone()

    expected_state, expected = end(False)
    own_state, own = alone(lambda: end(True))
    assert sorted(own_state["state"]) == [0, 1, 2, 3, 4, 5]
    assert own_state["state"][4]["step"].item() == 2
    assert_same_state(own_state, expected_state)
    assert largest_difference(own, expected) < 5e-7


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"step": 3, "exp_avg": torch.zeros(2), "exp_avg_sq": torch.zeros(2)}, "shape"),
        ({"step": torch.tensor(3.0), "exp_avg": torch.zeros(16, 8)}, "has no exp_avg_sq"),
        ({"step": -1, "exp_avg": torch.zeros(16, 8)}, "allowed: a whole number"),
        ({"momentum_buffer": torch.zeros(16, 8)}, "allowed: a whole number"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(entry, message):
    def work():
        model = make_mlp()
        optimizer = ADAMW(list(model.parameters()))
        optimizer.state[model[0].weight] = entry
        wrapper = gs.DecentralizedDataParallel(model, optimizer)
        train(wrapper, range(1))

    with pytest.raises(gs.ConfigError, match=f"of parameter 0.weight.*{message}"):
        alone(work)


def test_ranks_go_on_from_the_usual_checkpoint():
    """All-reduce of equal data is training alone."""
    expected, _ = plain_run(ADAMW, 8)

    def work():
        model = make_mlp()
        wrapper = gs.DecentralizedDataParallel(model, ADAMW, algorithm="allreduce")
        train(wrapper, range(4))
        saved = copy.deepcopy([model.state_dict(), wrapper.optimizer.state_dict()])
        wrapper.finish()
        model = make_mlp()
        model.load_state_dict(saved[0])
        again = gs.DecentralizedDataParallel(model, ADAMW, algorithm="allreduce")
        again.optimizer.load_state_dict(saved[1])
        train(again, range(4, 8))
        again.finish()
        return flat(model).clone()

    for end in gs.run_threads(2, work):
        assert largest_difference(end, flat(expected)) < 5e-7


def test_states_that_ranks_share_are_refused():
    def work():
        topology = {"name": "hierarchical", "leaders_every": 1}
        algorithm = {"name": "node_gossip", "shard": "optimizer"}
        wrapper = gs.DecentralizedDataParallel(make_mlp(), ADAMW, topology, algorithm=algorithm)
        train(wrapper, range(2))
        with pytest.raises(gs.ConfigError, match="share the optimizer's states"):
            wrapper.optimizer.state_dict()
        state = wrapper.state_dict()
        assert state["0.weight/m"].numel() == 128
        train(wrapper, range(2, 3))
        wrapper.finish()
        return rank()

    gs.run_threads(4, work, node_size=2)


def test_a_loaded_run_shows_its_state(tmp_path):
    def work():
        wrapper = gs.DecentralizedDataParallel(make_mlp(), ADAMW, "ring")
        train(wrapper, range(3))
        wrapper.save(tmp_path)
        expected = copy.deepcopy(wrapper.optimizer.state_dict())
        other = gs.DecentralizedDataParallel(make_mlp(), ADAMW, "ring")
        other.load(tmp_path)
        assert_same_state(other.optimizer.state_dict(), expected)
        train(wrapper, range(3, 5))
        train(other, range(3, 5))
        assert torch.equal(flat(other.module), flat(wrapper.module))
        assert_same_state(other.optimizer.state_dict(), wrapper.optimizer.state_dict())

    alone(work)


def test_new_buckets_keep_the_state():
    def work():
        wrapper = gs.DecentralizedDataParallel(make_mlp(), ADAMW, "ring", bucket_size_in_mb=1e-5)
        train(wrapper, range(3))
        before = copy.deepcopy(wrapper.optimizer.state_dict())
        wrapper.switch_to("ring", algorithm="gossip")
        assert_same_state(wrapper.optimizer.state_dict(), before)
        train(wrapper, range(3, 4))
        assert wrapper.optimizer.state_dict()["state"][0]["step"].item() == 4

    alone(work)
