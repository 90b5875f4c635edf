"""Models of all kinds, in a world of one, against PyTorch's optimizer."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from conftest import DEVICE, alone, flat, loss_of, make_mlp, run_python
from test_optimizers import OPTIMIZERS, largest_difference, plain, wrapped
from torch.utils.checkpoint import checkpoint

import gossamer as gs
from gossamer.devices import check_device

ADAMW = OPTIMIZERS["adamw"]


def seeded(make):
    torch.manual_seed(1)
    return make()


class Checkpointed(torch.nn.Module):
    """A model of which parts are computed again in the backward pass."""

    def __init__(self, reentrant: bool, whole: bool) -> None:
        super().__init__()
        self.inside = make_mlp()
        self.reentrant, self.whole = reentrant, whole

    def forward(self, x):
        if self.whole:
            x = x.requires_grad_()
            return checkpoint(self.inside, x, use_reentrant=self.reentrant)
        x = self.inside[0](x)
        return self.inside[2](checkpoint(self.inside[1], x, use_reentrant=self.reentrant))


class CheckpointedTwice(torch.nn.Module):
    """A layer in two checkpoints, so that it gets two gradients in a backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x):
        for _ in range(2):
            x = checkpoint(self.shared, x.requires_grad_(), use_reentrant=True)
        return self.head(x)


class InShards(torch.autograd.Function):
    """Applies a function to shards of a batch, each of which has a backward pass of its own."""

    @staticmethod
    def forward(ctx, function, x):
        ctx.function = function
        ctx.save_for_backward(x)
        with torch.no_grad():
            return torch.cat([function(part) for part in x.chunk(3)])

    @staticmethod
    def backward(ctx, grad):
        parts = [part.detach().requires_grad_() for part in ctx.saved_tensors[0].chunk(3)]
        for part, own in zip(parts, grad.chunk(3), strict=True):
            with torch.enable_grad():
                output = ctx.function(part)
            torch.autograd.backward(output, own)
        return None, torch.cat([part.grad for part in parts])


class Tiled(torch.nn.Module):
    """A model with a layer that gets a gradient for each shard of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.tiled = torch.nn.Linear(8, 3)

    def forward(self, x):
        return InShards.apply(self.tiled, self.first(x))


class Tied(torch.nn.Module):
    """One matrix in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Linear(8, 8, bias=False)
        self.two = torch.nn.Linear(8, 8)
        self.two.weight = self.one.weight
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.two(torch.tanh(self.one(x))))


class Alternating(torch.nn.Module):
    """Uses one layer in even calls, another one in odd calls, and a third one never."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 3) for _ in range(3)])
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.layers[self.calls % 2](x)


class Image(torch.nn.Module):
    """A convolution whose weights lie in channels_last order, and a transposed matrix."""

    def __init__(self) -> None:
        super().__init__()
        # Without a bias, whose gradient batch normalisation makes zero but for rounding.
        self.conv = torch.nn.Conv2d(2, 5, 2, bias=False)
        self.conv.to(memory_format=torch.channels_last)
        self.norm = torch.nn.BatchNorm2d(5)
        self.head = torch.nn.Parameter(torch.randn(3, 5).t())

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x.reshape(-1, 2, 2, 2)))).flatten(1) @ self.head


MODELS = {
    "checkpoint, reentrant": lambda: Checkpointed(True, False),
    "checkpoint, not reentrant": lambda: Checkpointed(False, False),
    "checkpoint of all, reentrant": lambda: Checkpointed(True, True),
    "checkpoint of all, not reentrant": lambda: Checkpointed(False, True),
    "a layer in two checkpoints": CheckpointedTwice,
    "a layer in shards": Tiled,
    "tied": Tied,
    "alternating": Alternating,
    "channels last": Image,
    "float64": lambda: make_mlp().double(),
}


class AsDouble(torch.nn.Module):
    """Takes batches of float32, whatever type the model has."""

    def __init__(self, inside: torch.nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x):
        return self.inside(x.to(next(self.inside.parameters()).dtype)).float()


@pytest.mark.parametrize("name", MODELS)
def test_trains(name):
    def make():
        return AsDouble(seeded(MODELS[name])).to(DEVICE)

    for size in (1e-5, 25):
        actual = alone(lambda size=size: wrapped(ADAMW, None, make(), bucket_size_in_mb=size))
        assert largest_difference(actual, plain(ADAMW, None, make())) < 5e-7


# RMSprop runs in Python.
@pytest.mark.parametrize("optim_fn", [ADAMW, lambda ps: torch.optim.RMSprop(ps, lr=1e-3)])
def test_bfloat16_has_master_copies(optim_fn):
    def end(dtype):
        return alone(lambda: wrapped(optim_fn, None, AsDouble(make_mlp().to(dtype))))

    # Small steps get lost in a bfloat16 alone.
    difference = largest_difference(end(torch.bfloat16), end(torch.float32))
    assert 0.0 < difference < 0.05


def test_compiled_and_autocast_models_train():
    def end(change):
        def train():
            model = make_mlp()
            wrapper = gs.DecentralizedDataParallel(change(model), ADAMW)
            for step in range(5):
                with torch.autocast(
                    DEVICE.type, dtype=torch.bfloat16, enabled=change is not compiled
                ):
                    loss = loss_of(wrapper, 0, step)
                loss.backward()
            return flat(model).clone()

        return alone(train)

    def compiled(model):
        return torch.compile(model, backend="aot_eager")

    assert largest_difference(end(compiled), end(lambda model: model)) < 0.05


# In a process of its own: PyTorch 2.11 crashes where a second thread compiles.
COMPILED = """
import torch, gossamer as gs
gs.initialize_dist("threads")
ends = []
for way in ("none", "function", "one graph", "method"):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    called = wrapper = gs.DecentralizedDataParallel(model, lambda ps: torch.optim.SGD(ps, lr=0.1))
    if way == "method":
        wrapper.compile(backend="eager")
    elif way != "none":
        called = torch.compile(wrapper, backend="eager", fullgraph=way == "one graph")
    for step in range(3):
        called(torch.full((4, 8), 0.1 * step)).square().mean().backward()
    assert wrapper.metrics()["steps"] == 3, way
    ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
assert all(torch.equal(end, ends[0]) for end in ends)
print("equal")
"""


def test_a_wrapper_may_be_compiled():
    done = run_python(["-c", COMPILED])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "equal"


def test_a_loss_may_be_scaled():
    def train(scale):
        wrapper = gs.DecentralizedDataParallel(make_mlp(), ADAMW)
        wrapper.set_gradient_scale(1 / scale)
        for step in range(10):
            (scale * loss_of(wrapper, 0, step)).backward()
        return flat(wrapper.module).clone()

    assert largest_difference(alone(lambda: train(1.0)), alone(lambda: train(1024.0))) < 5e-7


def test_hooks_of_the_user_see_gradients():
    seen = []

    def train():
        model = make_mlp()
        first = next(iter(model.parameters()))
        first.register_hook(lambda grad: seen.append(grad.norm().item()) or 2 * grad)
        wrapper = gs.DecentralizedDataParallel(model, ADAMW)
        for step in range(3):
            loss_of(wrapper, 0, step).backward()

    alone(train)
    assert len(seen) == 3
    assert all(norm > 0 for norm in seen)


def test_old_graphs_notice_new_values():
    def train():
        wrapper = gs.DecentralizedDataParallel(make_mlp(), ADAMW)
        loss_of(wrapper, 0, 0).backward()
        old = loss_of(wrapper, 0, 1)
        loss_of(wrapper, 0, 2).backward()
        old.backward()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        alone(train)


def test_parameters_are_views_of_the_engine():
    def train():
        model = make_mlp()
        before = list(model.parameters())
        wrapper = gs.DecentralizedDataParallel(model, ADAMW)
        loss_of(wrapper, 0, 0).backward()
        assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
        state = model.state_dict()
        addresses = [p.data_ptr() for p in model.parameters()]
        loss_of(wrapper, 0, 1).backward()
        assert addresses == [p.data_ptr() for p in model.parameters()]
        assert torch.equal(state["0.weight"], model[0].weight), "a state_dict shares memory"
        wrapper.finish()
        return model

    # They outlive the engine.
    assert torch.isfinite(flat(alone(train))).all()


def test_written_parameters():
    def train():
        model = make_mlp()
        wrapper = gs.DecentralizedDataParallel(model, ADAMW)
        loss_of(wrapper, 0, 0).backward()
        with wrapper.write_parameters(), torch.no_grad():
            model[0].weight.fill_(0.25)
            model[2].weight.data = torch.full((3, 16), 0.5, device=DEVICE)
        assert (model[0].weight == 0.25).all()
        assert (model[2].weight == 0.5).all()
        with torch.no_grad():
            model[0].bias.fill_(0.125)
        with pytest.warns(UserWarning, match="outside of write_parameters"):
            loss_of(wrapper, 0, 1).backward()
        assert (model[0].bias - 0.125).abs().max() < 0.02

    alone(train)


def test_what_cannot_be_wrapped_is_refused():
    class DistributedDataParallel(torch.nn.Module):
        pass

    def named(*names):
        module = torch.nn.Module()
        for name in names:
            module.register_parameter(name, torch.nn.Parameter(torch.zeros(2)))
        module.register_buffer("count", torch.zeros(1))
        return module

    cases = [
        (torch.nn.ReLU(), "nothing can be trained"),
        (named("x", "x/m"), "x/m of the model has the name of the parameter x with a slash"),
        (named("x", "run/steps"), "run/steps of the model begins with run/"),
        (named("python"), "the tensor python of the model comes twice"),
        (make_mlp().half(), "parameter 0.weight is torch.float16"),
        (make_mlp().to("meta"), "parameter 0.weight is on meta, allowed: the processor, and GPUs"),
        (DistributedDataParallel(), "synchronizes gradients itself"),
    ]
    for module, text in cases:
        with pytest.raises(gs.ConfigError, match=text):
            alone(lambda module=module: gs.DecentralizedDataParallel(module, ADAMW))


def test_a_gpu_of_another_kind_is_refused(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.0")
    check_device([("weight", torch.zeros(1))])

    class Elsewhere:
        device = torch.device("cuda", 0)

    with pytest.raises(gs.ConfigError, match="weight is on cuda:0, allowed: the processor, and"):
        check_device([("weight", Elsewhere())])


def test_sparse_gradients_are_refused():
    class Table(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = torch.nn.Embedding(5, 3, sparse=True)

        def forward(self, x):
            return self.rows(x)

    def train():
        wrapper = gs.DecentralizedDataParallel(Table(), OPTIMIZERS["sgd"])
        wrapper(torch.tensor([1, 2])).sum().backward()

    with pytest.raises(gs.ConfigError, match=r"rows.weight has a sparse gradient"):
        alone(train)


def test_copies_and_pickles_are_refused():
    def train():
        wrapper = gs.DecentralizedDataParallel(make_mlp(), ADAMW)
        with pytest.raises(TypeError, match=r"copy.deepcopy\(model.module\)"):
            copy.deepcopy(wrapper)
        with pytest.raises(TypeError, match="state_dict"):
            pickle.dumps(wrapper)

    alone(train)


def test_a_failed_backward_ends_training():
    def train():
        wrapper = gs.DecentralizedDataParallel(make_mlp(), ADAMW)
        loss_of(wrapper, 0, 0).backward()
        with pytest.raises(gs.NonFiniteError, match="not finite"):
            (float("nan") * loss_of(wrapper, 0, 1)).backward()
            # On a GPU the host learns of it later.
            wrapper.metrics()
        for again in (lambda: loss_of(wrapper, 0, 2).backward(), wrapper.state_dict):
            with pytest.raises((RuntimeError, gs.NonFiniteError), match=r"half way|not finite"):
                again()

    alone(train)
