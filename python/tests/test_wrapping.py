"""What happens to a module, and to what belongs to it, when it is wrapped and later."""

from __future__ import annotations

import copy
import gc
import warnings
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from conftest import DEVICE, alone, loss_of, make_mlp, rank
from test_optimizers import OPTIMIZERS
from torch.nn.utils import parametrize, prune

import gossamer as gs
from gossamer.compat.ddp import DistributedDataParallel

SGD = OPTIMIZERS["sgd"]


class Table(torch.nn.Module):
    """A module of which other tensors share memory with its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Embedding(5, 4)
        self.head = torch.nn.Linear(4, 3)
        self.to(DEVICE)
        self.table = self.rows.weight.detach()
        self.turned = [self.rows.weight.data.t()]
        self.register_buffer("part", self.head.weight.data.view(-1)[1:3])
        self.frozen = torch.nn.Parameter(self.head.bias.data, requires_grad=False)

    def forward(self, x):
        return self.head(self.rows(x))


def test_tensors_in_the_memory_of_a_parameter_follow_it():
    def train():
        model = Table()
        wrapper = gs.DecentralizedDataParallel(model, SGD)
        for _ in range(3):
            before = model.table.clone()
            wrapper(torch.arange(5, device=DEVICE)).square().mean().backward()
            assert not torch.equal(model.table, before)
            assert torch.equal(model.table, model.rows.weight)
            assert torch.equal(model.turned[0], model.rows.weight.t())
            assert torch.equal(model.part, model.head.weight.view(-1)[1:3])
            assert torch.equal(model.frozen, model.head.bias)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone(train)


def test_a_tensor_that_spans_parameters_is_told_of_when_they_are_wrapped():
    def wrap():
        model = make_mlp()
        flat = torch.cat([p.data.flatten() for p in model.parameters()])
        begin = 0
        for p in model.parameters():
            p.data = flat[begin : begin + p.numel()].view(p.shape)
            begin += p.numel()
        with pytest.warns(UserWarning, match=r"\[195\] .* shares memory .* 0.weight, 0.bias, 2.w"):
            gs.DecentralizedDataParallel(model, SGD)

    alone(wrap)


def test_two_parameters_in_the_same_memory_are_told_of_when_they_are_wrapped():
    def wrap():
        model = torch.nn.Sequential(*[torch.nn.Linear(8, 8, bias=False) for _ in range(3)])
        model[2].weight.data = model[1].weight.data
        text = r"parameters 1\.weight and 2\.weight are two .* before wrapping, as by 2.weight = 1"
        with pytest.warns(UserWarning, match=text):
            gs.DecentralizedDataParallel(model.to(DEVICE), SGD)

    alone(wrap)


def test_one_parameter_in_two_places_is_told_of_nothing():
    def train():
        model = torch.nn.Sequential(*[torch.nn.Linear(8, 8, bias=False) for _ in range(2)])
        model[1].weight = model[0].weight
        wrapper = gs.DecentralizedDataParallel(model.to(DEVICE), SGD)
        for _ in range(2):
            wrapper(torch.ones(4, 8, device=DEVICE)).square().mean().backward()
        assert torch.equal(model[0].weight, model[1].weight)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone(train)


def swap(model):
    torch.utils.swap_tensors(model[0].weight, torch.nn.Parameter(torch.ones_like(model[0].weight)))


def assign(model):
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)


def make_parametrized(model):
    parametrize.register_parametrization(model[2], "weight", torch.nn.Tanh())


CHANGES = {
    "bfloat16": (lambda m: m.to(torch.bfloat16), "float32 to torch.bfloat16"),
    "double": (lambda m: m[2].double(), "2.weight has changed from torch.float32 to"),
    "another device": (lambda m: m.to("meta"), "0.weight has moved from"),
    "assign": (assign, "0.weight is no longer in its module"),
    "parametrize": (make_parametrized, "2.weight is no longer in its module"),
    "prune": (lambda m: prune.random_unstructured(m[2], "bias", 0.5), "2.bias is no longer in"),
    "swap_tensors": (swap, "0.weight has been exchanged for another tensor"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_parameters_that_are_replaced_after_wrapping_are_refused(name):
    change, text = CHANGES[name]

    def train(num_steps):
        model = make_mlp()
        wrapper = gs.DecentralizedDataParallel(model, SGD)
        for step in range(num_steps):
            loss_of(wrapper, 0, step).backward()
        change(model)
        p = next(model.parameters())
        x = torch.ones(4, 8, dtype=p.dtype, device=p.device)
        with pytest.raises(gs.ConfigError, match=text):
            wrapper(x).sum().backward()

    for num_steps in (0, 2):
        alone(lambda num_steps=num_steps: train(num_steps))


def send(model):
    ForkingPickler.dumps(model)


def send_state(model):
    ForkingPickler.dumps(model.state_dict())


@pytest.mark.parametrize("move", [torch.nn.Module.share_memory, send, send_state])
@pytest.mark.parametrize("num_steps", [0, 2])
def test_parameters_whose_memory_has_moved_are_refused_at_the_next_step(move, num_steps):
    def train():
        model = torch.nn.Linear(8, 3)
        wrapper = gs.DecentralizedDataParallel(model, SGD)
        x = torch.ones(4, 8)
        for _ in range(num_steps):
            wrapper(x).square().mean().backward()
        move(model)
        with pytest.raises(gs.ConfigError, match=r"weight has moved to other memory .*deepcopy"):
            wrapper(x).square().mean().backward()

    alone(train)


def test_a_copy_of_the_module_may_be_sent_to_a_process():
    def train():
        model = torch.nn.Linear(8, 3)
        wrapper = gs.DecentralizedDataParallel(model, SGD)
        for _ in range(3):
            send(copy.deepcopy(model))
            wrapper(torch.ones(4, 8)).square().mean().backward()
        assert wrapper.metrics()["steps"] == 3

    alone(train)


def test_parameters_in_memory_that_processes_share_are_told_of_when_they_are_wrapped():
    def wrap():
        with pytest.warns(UserWarning, match=r"^2 parameters are in memory .*: weight, bias\. The"):
            gs.DecentralizedDataParallel(torch.nn.Linear(8, 3).share_memory(), SGD)

    alone(wrap)


def test_other_tensors_may_take_the_parameters_places_for_one_call():
    def train():
        wrapper = gs.DecentralizedDataParallel(make_mlp(), SGD)
        loss_of(wrapper, 0, 0).backward()
        x = torch.ones(4, 8, device=DEVICE)
        zeros = {f"module.{k}": torch.zeros_like(p) for k, p in wrapper.module.named_parameters()}
        assert torch.func.functional_call(wrapper, zeros, (x,)).abs().max() == 0
        loss_of(wrapper, 0, 1).backward()
        assert wrapper.metrics()["steps"] == 2

    alone(train)


def test_a_wrapper_that_is_gone_is_told_of():
    def train():
        model = make_mlp()
        gs.DecentralizedDataParallel(model, SGD)
        gc.collect()
        with pytest.warns(UserWarning, match="this module is gone, so nothing updates"):
            loss_of(model, 0, 0).backward()

    alone(train)


@pytest.mark.parametrize("algorithm", ["allreduce", "gossip"])
def test_a_drop_in_that_nobody_keeps_is_gone_at_once(algorithm):
    """Not when Python next looks for cycles, which is another step on every rank."""

    def train():
        model = make_mlp()
        # The first optimizer has PyTorch import a part whose errors keep all frames of this thread.
        SGD(model.parameters())
        gc.disable()
        try:
            DistributedDataParallel(model, algorithm=algorithm)
            with pytest.warns(UserWarning, match="this module is gone, so nothing updates"):
                loss_of(model, 0, 0).backward()
        finally:
            gc.enable()

    alone(train)


def test_a_module_has_one_wrapper_at_a_time():
    def train():
        model = make_mlp()
        first = gs.DecentralizedDataParallel(model, SGD)
        with pytest.raises(gs.ConfigError, match=r"wrapped already: .* parameter 0.weight"):
            gs.DecentralizedDataParallel(model, SGD)
        first.finish()
        second = gs.DecentralizedDataParallel(model, SGD)
        loss_of(second, 0, 0).backward()
        assert second.metrics()["steps"] == 1

    alone(train)


def test_an_attribute_of_the_module_is_said_to_be_there():
    def look():
        wrapper = gs.DecentralizedDataParallel(torch.nn.Linear(8, 3).to(DEVICE), SGD)
        with pytest.raises(AttributeError, match=r"has it: model\.module\.out_features"):
            _ = wrapper.out_features
        with pytest.raises(AttributeError, match=r"no attribute 'spam'$"):
            _ = wrapper.spam

    alone(look)


def gan_steps(**arguments):
    """Train a generator and a discriminator in turn; return the steps of both."""
    generator, discriminator = torch.nn.Linear(2, 8).to(DEVICE), make_mlp()
    g, d = (gs.DecentralizedDataParallel(m, SGD) for m in (generator, discriminator))
    noise = torch.ones(4, 2, device=DEVICE)
    for _ in range(3):
        d(g(noise).detach()).mean().backward()
        given = {name: list(generator.parameters()) for name in arguments}
        (-d(g(noise)).mean()).backward(**given)
    return g.metrics()["steps"], d.metrics()["steps"]


def test_a_wrapper_that_steps_in_the_passes_of_another_one_is_told_of():
    with pytest.warns(UserWarning, match="as a discriminator does in the passes of its generator"):
        assert alone(gan_steps) == (3, 6)


def test_a_pass_may_name_the_parameters_that_get_gradients():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert alone(lambda: gan_steps(inputs=True)) == (3, 3)


class Buffered(torch.nn.Module):
    """A buffer that expand() has made, and one that every forward pass makes anew."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = make_mlp()
        self.register_buffer("wide", torch.full((1,), float(rank()), device=DEVICE).expand(5))
        self.register_buffer("seen", torch.zeros(2, device=DEVICE).t())

    def forward(self, x):
        self.seen = self.seen + rank() + 1
        return self.inside(x)


def test_an_expanded_buffer_is_shared_averaged_and_saved(tmp_path):
    def train():
        model = Buffered()
        wrapper = gs.DecentralizedDataParallel(model, SGD, "ring")
        assert model.wide.tolist() == [0.0] * 5, "that of rank 0"
        loss_of(wrapper, rank(), 0).backward()
        model.wide[:1] = 3.0 + rank()
        wrapper.save(tmp_path)
        with wrapper.global_average():
            assert model.wide.tolist() == [3.5] * 5
        assert model.wide.tolist() == [3.0 + rank()] * 5
        model.wide[:1] = 7.0
        wrapper.load(tmp_path)
        assert model.wide.tolist() == [3.0 + rank()] * 5
        wrapper.load_state_dict(wrapper.state_dict())
        assert model.wide.stride() == (0,)

    gs.run_threads(2, train)


def test_a_buffer_that_a_pass_makes_anew_is_the_ranks_own_after_an_average():
    def train():
        model = Buffered()
        wrapper = gs.DecentralizedDataParallel(model, SGD, "ring")
        loss_of(wrapper, rank(), 0).backward()
        before = model.seen
        assert before.tolist() == [rank() + 1.0] * 2
        with wrapper.global_average():
            assert model.seen.tolist() == [1.5, 1.5]
            loss_of(model, rank(), 1)
            assert model.seen is not before
        assert model.seen is before
        assert model.seen.tolist() == [rank() + 1.0] * 2

    gs.run_threads(2, train)


class Counting(torch.nn.Module):
    """A module that counts its passes, in buffers of several types."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = make_mlp()
        self.norm = torch.nn.BatchNorm1d(3).to(DEVICE)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64, device=DEVICE))
        self.register_buffer("rounded", torch.zeros(2, dtype=torch.bfloat16, device=DEVICE))
        self.register_buffer("last", None)

    def forward(self, x):
        self.count = self.count + 1
        self.rounded += 1
        self.last = x[0].detach()
        return self.norm(self.inside(x))


def test_counters_of_passes_are_the_ranks_own_after_an_average():
    def train():
        model = Counting()
        wrapper = gs.DecentralizedDataParallel(model, SGD, "ring")
        with wrapper.global_average():
            loss_of(model, rank(), 0)
        assert model.last is None
        for step in range(3):
            loss_of(wrapper, rank(), step).backward()
        with wrapper.global_average():
            for step in range(2):
                loss_of(model, rank(), step)
            assert model.count.item() == 5
        assert model.count.item() == 3
        assert model.norm.num_batches_tracked.item() == 3
        assert model.rounded.tolist() == [3.0, 3.0]

    gs.run_threads(2, train)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_buffers_of_every_floating_type_are_averaged(dtype):
    def train():
        norm = torch.nn.BatchNorm1d(3, affine=False).to(DEVICE, dtype)
        model = torch.nn.Sequential(make_mlp(), norm)
        wrapper = gs.DecentralizedDataParallel(model, SGD, "ring")
        own = 1.0 + 2.0 * rank()
        norm.running_mean.fill_(own)
        with wrapper.global_average():
            assert norm.running_mean.tolist() == [2.0, 2.0, 2.0]
        assert norm.running_mean.tolist() == [own] * 3

    gs.run_threads(2, train)


class Experts(torch.nn.Module):
    """A layer for each of three ranks, of which a batch uses one, behind a layer that all use."""

    def __init__(self) -> None:
        super().__init__()
        self.first = make_mlp()
        self.experts = torch.nn.ModuleList(torch.nn.Linear(3, 3).to(DEVICE) for _ in range(3))

    def forward(self, x, expert=0):
        return self.experts[expert](self.first(x))


def test_ranks_may_use_different_parts_in_their_first_step():
    def train():
        model = Experts()
        wrapper = gs.DecentralizedDataParallel(model, SGD, "complete", bucket_size_in_mb=1e-5)
        moved = [expert.weight.detach().clone() for expert in model.experts]
        for step in range(4):
            expert = (rank() + step) % 3
            wrapper(torch.ones(4, 8, device=DEVICE), expert).square().mean().backward()
        with wrapper.global_average():
            parts = zip(model.experts, moved, strict=True)
            assert all(not torch.equal(expert.weight, before) for expert, before in parts)
        return wrapper.metrics()["steps"]

    assert gs.run_threads(3, train) == [4, 4, 4]


def test_a_rank_may_have_no_batch_in_the_first_step():
    def train():
        wrapper = gs.DecentralizedDataParallel(make_mlp(), SGD, "ring")
        for step in range(3):
            if rank() == 0 and step == 0:
                wrapper.finish_step()
            else:
                loss_of(wrapper, rank(), step).backward()
        return wrapper.metrics()["steps"]

    assert gs.run_threads(2, train) == [3, 3]


def test_messages_name_arguments_of_python():
    def train(options):
        wrapper = gs.DecentralizedDataParallel(make_mlp(), SGD, options=options)
        (float("nan") * loss_of(wrapper, 0, 0)).backward()
        # On a GPU the host learns of it later.
        wrapper.metrics()

    with pytest.raises(gs.NonFiniteError) as caught:
        alone(lambda: train({}))
    assert 'options={"grad_clip": "global", "grad_clip_norm": 1.0}' in str(caught.value)
    assert 'options={"nonfinite": "skip"}' in str(caught.value)
    with pytest.raises(gs.ConfigError, match=r"^options: spam: unknown key"):
        alone(lambda: train({"spam": 1}))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optim_fn": "adamw"}, "optim_fn: is 'adamw'"),
        ({"optim_fn": lambda ps: None}, "optim_fn: has returned None"),
        ({"lr_scheduler_fn": lambda o: None}, "lr_scheduler_fn: has returned None"),
        ({"bucket_size_in_mb": -1}, "bucket_size_in_mb: is -1"),
    ],
)
def test_arguments_that_cannot_be_are_named(arguments, message):
    def wrap():
        with pytest.raises(gs.ConfigError, match=message):
            gs.DecentralizedDataParallel(make_mlp(), **{"optim_fn": SGD} | arguments)

    alone(wrap)


def test_tensors_without_values_are_refused():
    def wrap():
        with pytest.raises(gs.ConfigError, match="weight has no values yet"):
            gs.DecentralizedDataParallel(torch.nn.LazyLinear(3), SGD)
        model = make_mlp()
        model.register_buffer("far", torch.zeros(2, device="meta"))
        with pytest.raises(gs.ConfigError, match="far is on the meta device"):
            gs.DecentralizedDataParallel(model, SGD)

    alone(wrap)


@pytest.mark.parametrize("survive", [False, True])
def test_a_wrapper_that_has_finished_knows_its_steps(survive):
    def train():
        wrapper = gs.DecentralizedDataParallel(make_mlp(), SGD)
        for step in range(3):
            loss_of(wrapper, rank(), step).backward()
        wrapper.finish()
        return wrapper.num_steps, wrapper.metrics()["steps"]

    assert gs.run_threads(2, train, survive=survive) == [(3, 3), (3, 3)]


def test_a_wrapper_that_has_finished_trains_no_more():
    def train():
        model = make_mlp()
        wrapper = gs.DecentralizedDataParallel(model, SGD)
        loss_of(wrapper, 0, 0).backward()
        wrapper.finish()
        with pytest.raises(gs.ConfigError, match="finish\\(\\) has ended the training"):
            loss_of(wrapper, 0, 0)
        wrapper.eval()
        assert loss_of(wrapper, 0, 0).item() == loss_of(model, 0, 0).item()

    alone(train)


@pytest.mark.parametrize(("before", "after"), [(0.0, 0.9), (0.9, 0.0)])
def test_a_momentum_that_comes_or_goes_while_training_is_refused(before, after):
    def train():
        wrapper = gs.DecentralizedDataParallel(
            make_mlp(), lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=before)
        )
        loss_of(wrapper, 0, 0).backward()
        wrapper.optimizer.param_groups[0]["momentum"] = after
        with pytest.raises(gs.ConfigError, match="make such changes before wrapping"):
            loss_of(wrapper, 0, 0).backward()

    alone(train)
