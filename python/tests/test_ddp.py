"""The drop-in for DistributedDataParallel: mean gradients, or gossip in the optimizer's step."""

from __future__ import annotations

import contextlib
import copy
import warnings

import pytest
import torch
from conftest import alone, batch, flat, loss_of, make_mlp, needs_mpi, rank, run_python
from test_models import Alternating, Image
from test_optimizers import IN_PYTHON, OPTIMIZERS, SCHEDULES, largest_difference

import gossamer as gs
from gossamer.checks import share_tensors
from gossamer.compat.ddp import DistributedDataParallel

NUM_STEPS = 10


def mean_loss(model, ranks, step):
    """Return the mean of the ranks' losses: its gradient is the mean of the ranks' gradients."""
    losses = [torch.nn.functional.mse_loss(model(x), y) for x, y in (batch(r, step) for r in ranks)]
    return torch.stack(losses).mean()


def train(model, optim_fn, ranks, schedule=None, parts=1, clip=None):
    """Train as a program for DistributedDataParallel does; also the reference, with all ranks."""
    optimizer = optim_fn(list(model.parameters()))
    scheduler = schedule(optimizer) if schedule else None
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        for part in range(parts - 1):
            if isinstance(model, DistributedDataParallel):
                with model.no_sync():
                    mean_loss(model, ranks, 100 * part + step).backward()
            else:
                mean_loss(model, ranks, 100 * part + step).backward()
        mean_loss(model, ranks, step).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if scheduler:
            scheduler.step()
    return model


def end_of_ranks(num_ranks, make, optim_fn, options=None, **how):
    def work():
        model = DistributedDataParallel(make(), **(options or {}))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            train(model, optim_fn, [rank()], **how)
        return flat(model).clone()

    return gs.run_threads(num_ranks, work)


HOWS = {
    "plain": {},
    "clipping": {"clip": 0.05},
    "no_sync": {"parts": 3},
    "schedule": {"schedule": SCHEDULES["cosine"]},
}


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", ["momentum", "adamw", "rmsprop"])
def test_all_reduce_is_training_with_all_batches(num_ranks, how, name):
    optim_fn = (OPTIMIZERS | IN_PYTHON)[name]
    expected = train(make_mlp(), optim_fn, range(num_ranks), **HOWS[how])
    for size in (1e-5, 25):
        ends = end_of_ranks(num_ranks, make_mlp, optim_fn, {"bucket_cap_mb": size}, **HOWS[how])
        for end in ends:
            assert torch.equal(end, ends[0])
            assert largest_difference(end, flat(expected)) < 1e-6


def test_gradients_are_means_and_stay():
    def work():
        model = DistributedDataParallel(make_mlp())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        mean_loss(model, [rank()], 0).backward()
        with model.no_sync():
            mean_loss(model, [rank()], 1).backward()
        mean_loss(model, [rank()], 2).backward()
        optimizer.step()
        assert model.metrics()["steps"] == 2
        return [p.grad.clone() for p in model.parameters()]

    model = make_mlp()
    for step in range(3):
        mean_loss(model, range(3), step).backward()
    for grads in gs.run_threads(3, work):
        for grad, p in zip(grads, model.parameters(), strict=True):
            assert torch.allclose(grad, p.grad, atol=1e-6)


# What PyTorch's own class leaves in p.grad on two ranks whose losses have the gradients 2 and 4.
# "f" and "b" are the forward and the backward pass, "F" and "B" those inside of no_sync(). A
# backward pass is that of the oldest graph that is left, or of the newest one if "'" follows. In
# PyTorch, the second backward pass of "ffbb" does not sum, and the models part.
PLACES = {
    "fb": [3, 3],
    "Fb": [2, 4],
    "fB": [3, 3],
    "FB": [2, 4],
    "FBfb": [6, 6],
    "FbfB": [6, 6],
    "fBFb": [5, 7],
    "fBfb": [6, 6],
    "ffbb": [6, 6],
    "fFB'b": [5, 7],
    "FfBb": [5, 7],
}


@pytest.mark.parametrize("order", PLACES)
def test_the_forward_pass_decides_whether_gradients_are_summed(order):
    def work():
        net = torch.nn.Linear(1, 1, bias=False)
        model = DistributedDataParallel(net)
        graphs = []
        for kind, end in zip(order, order[1:] + " ", strict=True):
            with model.no_sync() if kind.isupper() else contextlib.nullcontext():
                if kind.lower() == "f":
                    graphs.append(model(torch.tensor([[2.0 * (1 + rank())]])))
                elif kind.lower() == "b":
                    graphs.pop(-1 if end == "'" else 0).sum().backward()
        return net.weight.grad.item()

    assert gs.run_threads(2, work) == PLACES[order]


def test_no_sync_may_be_nested():
    def work():
        net = torch.nn.Linear(1, 1, bias=False)
        model = DistributedDataParallel(net)
        x = torch.tensor([[2.0 * (1 + rank())]])
        grads = []
        with model.no_sync():
            with model.no_sync():
                model(x).sum().backward()
            model(x).sum().backward()
            grads.append(net.weight.grad.item())
            with pytest.raises(ZeroDivisionError), model.no_sync():
                raise ZeroDivisionError
            assert not model.require_backward_grad_sync
        assert model.require_backward_grad_sync
        for syncs in (False, True):
            net.weight.grad = None
            model.require_backward_grad_sync = syncs
            model(x).sum().backward()
            grads.append(net.weight.grad.item())
        return grads

    assert gs.run_threads(2, work) == [[4, 2, 3], [8, 4, 3]]


def test_a_rank_without_a_batch_takes_part():
    """Rank 1 has no second batch; its share of the mean is zero, and the buffers are rank 0's."""

    def work():
        torch.manual_seed(1)
        model = DistributedDataParallel(Image())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            if step == 1 and rank() == 1:
                model.finish_step()
            else:
                mean_loss(model, [rank()], step).backward()
            optimizer.step()
        return flat(model).clone(), model.metrics()["steps"]

    ends = gs.run_threads(2, work)
    assert torch.equal(ends[0][0], ends[1][0])
    assert [steps for _, steps in ends] == [3, 3]


def test_a_graph_may_be_used_twice():
    def work():
        model = DistributedDataParallel(make_mlp())
        for _ in range(2):
            loss = mean_loss(model, [rank()], 0)
            loss.backward(retain_graph=True)
            loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    model = make_mlp()
    (4 * mean_loss(model, range(2), 0)).backward()
    for grads in gs.run_threads(2, work):
        for grad, p in zip(grads, model.parameters(), strict=True):
            assert torch.allclose(grad, p.grad, atol=1e-5)


def test_ranks_may_use_different_parameters():
    """A parameter that no rank uses has no gradient; that of one rank alone counts half."""

    def work():
        inside = Alternating()
        inside.calls = rank()
        model = DistributedDataParallel(inside, find_unused_parameters=True)
        grads = []
        for step in range(3):
            model.zero_grad()
            mean_loss(model, [rank()], step).backward()
            grads.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
        return copy.deepcopy(inside), grads

    ends = gs.run_threads(2, work)
    for step in range(3):
        model = ends[0][0]
        model.zero_grad()
        for r in range(2):
            model.calls = r + step
            (mean_loss(model, [r], step) / 2).backward()
        for _, grads in ends:
            for grad, p in zip(grads[step], model.parameters(), strict=True):
                assert (grad is None) == (p.grad is None)
                assert grad is None or torch.allclose(grad, p.grad, atol=1e-6)
        assert grads[step][4] is None


def test_parameters_are_the_users():
    """Written and moved parameters are trained, without a warning."""

    def work():
        model = DistributedDataParallel(make_mlp())
        with torch.no_grad():
            for p in model.parameters():
                p.data = 2 * p.data
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for step in range(4):
                optimizer.zero_grad()
                mean_loss(model, [rank()], step).backward()
                optimizer.step()
                with torch.no_grad():
                    for p in model.parameters():
                        p.data = 0.5 * p.data
        return flat(model).clone()

    model = make_mlp()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        mean_loss(model, range(2), step).backward()
        optimizer.step()
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.5)
    for end in gs.run_threads(2, work):
        assert largest_difference(end, flat(model)) < 1e-6


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda ps: torch.optim.SGD(ps, lr=0.1),
        # It reads parameters, gradients and states in the order in which they lie in memory.
        lambda ps: torch.optim.SGD(ps, lr=0.1, fused=True),
    ],
    ids=["plain", "fused"],
)
def test_parameters_that_get_another_layout_later_are_trained(make_optimizer):
    """After two steps the matrices are transposed in memory, and the images channels_last."""

    def train(model, ranks):
        optimizer = make_optimizer(model.parameters())
        for step in range(5):
            if step == 2:
                for p in model.parameters():
                    if p.dim() == 2:
                        p.data = p.data.t().contiguous().t()
                model.to(memory_format=torch.channels_last)
            optimizer.zero_grad()
            mean_loss(model, ranks, step).backward()
            optimizer.step()
        return flat(model).clone()

    def make():
        torch.manual_seed(1)
        return torch.nn.Sequential(
            torch.nn.Unflatten(1, (2, 2, 2)),
            torch.nn.Conv2d(2, 3, 3, padding=1),
            torch.nn.Flatten(),
            torch.nn.Linear(12, 3),
        )

    nets = [make() for _ in range(2)]
    expected = train(make(), range(2))
    for end in gs.run_threads(2, lambda: train(DistributedDataParallel(nets[rank()]), [rank()])):
        assert largest_difference(end, expected) < 1e-6


@pytest.mark.parametrize("when", [0, 2])
@pytest.mark.parametrize("options", [{}, {"algorithm": "gossip", "topology": "ring"}], ids=str)
@pytest.mark.filterwarnings("ignore:parameters were written")
def test_a_parameter_may_become_its_own_transpose(options, when):
    """The transposed view begins at the address of the parameter."""

    def train(wrap):
        torch.manual_seed(1)
        net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 3))
        model = wrap(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            if step == when:
                net[0].weight.data = net[0].weight.data.t()
            optimizer.zero_grad()
            mean_loss(model, [0], step).backward()
            optimizer.step()
        if wrap is not plain:
            model.finish()
        return flat(net).clone()

    def plain(net):
        return net

    end = alone(lambda: train(lambda net: DistributedDataParallel(net, **options)))
    assert largest_difference(end, train(plain)) < 1e-6


def test_models_may_share_the_memory_of_a_parameter():
    """After two steps both optimizers update the one memory, as without the drop-in."""

    def train(nets, models, ranks):
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        for step in range(5):
            if step == 2:
                nets[1][0].weight.data = nets[0][0].weight.data
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                mean_loss(model, ranks, step).backward()
                optimizer.step()
        assert nets[0][0].weight.data_ptr() == nets[1][0].weight.data_ptr()
        return torch.cat([flat(net) for net in nets])

    def work():
        nets = [make_mlp(), make_mlp()]
        return train(nets, [DistributedDataParallel(net) for net in nets], [rank()])

    nets = [make_mlp(), make_mlp()]
    expected = train(nets, nets, range(2))
    for end in gs.run_threads(2, work):
        assert largest_difference(end, expected) < 1e-6


CONVERSIONS = {
    "layer": (
        lambda model: model[2].double(),
        "2.weight has changed from torch.float32 to torch.f",
    ),
    "data": (
        lambda model: setattr(model[2].weight, "data", model[2].weight.data.bfloat16()),
        "2.weight has changed from torch.float32 to torch.bfloat16",
    ),
}


@pytest.mark.parametrize("algorithm", ["allreduce", "gossip"])
@pytest.mark.parametrize("name", CONVERSIONS)
def test_parameters_that_are_converted_later_are_named(name, algorithm):
    """PyTorch's own operations would fail first, and name no parameter."""
    convert, message = CONVERSIONS[name]

    def train():
        model = make_mlp()
        wrapper = DistributedDataParallel(model, algorithm=algorithm)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss_of(wrapper, 0, 0).backward()
        optimizer.step()
        convert(model)
        with pytest.raises(gs.ConfigError, match=message):
            loss_of(wrapper, 0, 1)
        wrapper.finish()

    alone(train)


@pytest.mark.parametrize("broadcasts", [True, False])
def test_buffers_are_rank_0s_before_a_forward_pass(broadcasts):
    def work():
        torch.manual_seed(1)
        model = DistributedDataParallel(Image(), broadcast_buffers=broadcasts)
        seen = []
        norm = model.module.norm
        norm.register_forward_pre_hook(lambda *_: seen.append(norm.running_mean.clone()))
        for step in range(3):
            mean_loss(model, [rank()], step).backward()
        with torch.no_grad():
            model(batch(0, 0)[0])
        return seen

    ends = gs.run_threads(2, work)
    for step in range(3):
        same = torch.equal(ends[0][step], ends[1][step])
        assert same == (broadcasts or step == 0)
    assert not torch.equal(ends[0][3], ends[1][3]), "without gradients nobody waits for others"


@pytest.fixture
def num_broadcasts(monkeypatch):
    """Count the broadcasts of each thread, a round trip each."""
    counts = {}
    broadcast = gs.Session.broadcast

    def counting(session, memory, root):
        counts[session.rank] = counts.get(session.rank, 0) + 1
        broadcast(session, memory, root)

    monkeypatch.setattr(gs.Session, "broadcast", counting)
    return counts


def test_a_forward_pass_shares_all_buffers_at_once(num_broadcasts):
    def work():
        module = torch.nn.Sequential(*[torch.nn.BatchNorm1d(8) for _ in range(20)])
        with torch.no_grad():
            for buffer in module.buffers():
                buffer += rank()
        model = DistributedDataParallel(module)
        at_start = num_broadcasts[rank()]
        for step in range(3):
            with torch.no_grad():
                for buffer in module.buffers():
                    buffer += rank()
            model(batch(0, step)[0]).sum().backward()
        return at_start, num_broadcasts[rank()], [b.clone() for b in module.buffers()]

    ends = gs.run_threads(2, work)
    for at_start, at_end, _ in ends:
        assert (at_start, at_end) == (1, 4)
    for first, second in zip(ends[0][2], ends[1][2], strict=True):
        assert torch.equal(first, second)


def test_tensors_of_every_kind_are_shared_at_once(num_broadcasts):
    def tensors(factor):
        values = torch.arange(1, 241) * factor
        return [
            values.double(),
            values.bfloat16()[:7],
            (values % 2).bool()[:5],
            values[3],
            values.float().reshape(2, 3, 8, 5).permute(3, 1, 0, 2),
            values.float().reshape(2, 3, 8, 5).to(memory_format=torch.channels_last),
            values.half().reshape(20, 12)[::3, 1:4],
            values[:0],
        ]

    def work():
        own = tensors(1 + 2 * rank())
        share_tensors(gs.current_session(), own)
        return own

    for own in gs.run_threads(3, work):
        for value, expected in zip(own, tensors(1), strict=True):
            assert torch.equal(value, expected)
    assert set(num_broadcasts.values()) == {1}


def test_names_are_those_of_the_original():
    def work():
        model = DistributedDataParallel(make_mlp())
        names = list(model.state_dict())
        assert names == [f"module.{name}" for name in make_mlp().state_dict()]
        assert [name for name, _ in model.named_parameters()] == names
        model.load_state_dict(model.state_dict())

    gs.run_threads(1, work)


@pytest.mark.parametrize("topology", ["ring", "one-peer-exp", "directed-one-peer-exp"])
@pytest.mark.parametrize("name", [*OPTIMIZERS, *IN_PYTHON])
def test_gossip_is_that_of_the_library(topology, name):
    optim_fn = (OPTIMIZERS | IN_PYTHON)[name]

    def library():
        model = make_mlp()
        wrapper = gs.DecentralizedDataParallel(model, optim_fn, topology)
        for step in range(NUM_STEPS):
            mean_loss(wrapper, [rank()], step).backward()
        wrapper.finish()
        return flat(model).clone()

    ends = end_of_ranks(4, make_mlp, optim_fn, {"algorithm": "gossip", "topology": topology})
    for end, expected in zip(ends, gs.run_threads(4, library), strict=True):
        assert largest_difference(end, expected) < 1e-6
    assert not torch.equal(ends[0], ends[1])


@pytest.mark.parametrize("how", HOWS)
def test_gossip_in_a_world_of_one_is_the_optimizer(how):
    for name in ("momentum", "adamw"):
        expected = train(make_mlp(), OPTIMIZERS[name], [0], **HOWS[how])
        options = {"algorithm": "gossip", "topology": "ring", "bucket_cap_mb": 1e-5}
        (end,) = end_of_ranks(1, make_mlp, OPTIMIZERS[name], options, **HOWS[how])
        assert torch.equal(end, flat(expected))


def test_gossip_leaves_states_and_gradients_to_the_optimizer():
    def work():
        model = DistributedDataParallel(make_mlp(), algorithm="gossip", topology="ring")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        losses = []
        for step in range(3):
            optimizer.zero_grad()

            def closure(step=step):
                loss = mean_loss(model, [rank()], step)
                loss.backward()
                return loss

            losses.append(optimizer.step(closure).item())
            assert all(p.grad is not None for p in model.parameters())
        states = optimizer.state_dict()["state"]
        assert sorted(states) == [0, 1, 2, 3]
        assert all(state["step"] == 3 for state in states.values())
        assert losses[0] > losses[2]
        with model.global_average() as distance:
            assert distance > 0
            return flat(model).clone()

    ends = gs.run_threads(2, work)
    assert torch.equal(ends[0], ends[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device_ids": [7]}, "device_ids is .*, allowed: None, or the one GPU"),
        ({"process_group": "a group"}, "process_group is 'a group', allowed: None"),
        ({"mixed_precision": "some"}, "mixed_precision is 'some', allowed: None"),
        ({"init_sync": False}, "init_sync is False, allowed: True"),
        ({"bucket_cap_mb": 0}, "bucket_cap_mb is 0, allowed: more than 0"),
    ],
)
def test_arguments_that_would_do_something_else_are_refused(arguments, message):
    with pytest.raises(gs.ConfigError, match=message):
        gs.run_threads(1, lambda: DistributedDataParallel(make_mlp(), **arguments))


def test_arguments_without_meaning_are_taken():
    def work():
        model = DistributedDataParallel(
            make_mlp(),
            None,
            find_unused_parameters=True,
            gradient_as_bucket_view=True,
            static_graph=True,
            device_mesh=None,
        )
        with model.join(enable=False):
            mean_loss(model, [0], 0).backward()
        with pytest.raises(gs.ConfigError, match='allowed: the argument codec, as codec="bf16"'):
            model.register_comm_hook(None, lambda *_: None)

    gs.run_threads(1, work)
    with pytest.raises(TypeError, match="no argument 'bucket_cap'"):
        gs.run_threads(1, lambda: DistributedDataParallel(make_mlp(), bucket_cap=1))


PROGRAM = """
import os, pathlib, sys
import torch
from {library} import DistributedDataParallel

torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Linear(8, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    x = torch.randn(16, 8)
    torch.nn.functional.mse_loss(model(x), 2 * x[:, :3] + 1).backward()
    optimizer.step()
end = [round(p.double().sum().item(), 4) for p in model.parameters()]
pathlib.Path(sys.argv[1], str(os.getpid())).write_text(str(end))
"""


@needs_mpi
def test_a_program_changes_one_import(tmp_path):
    """Both processes draw the same batches, so that their mean is what one of them computes."""

    def ends(name, program, num_processes):
        (tmp_path / f"{name}.py").write_text(program)
        folder = tmp_path / name
        folder.mkdir()
        done = run_python([f"{folder}.py", str(folder)], num_processes)
        assert done.returncode == 0, done.stderr
        return [path.read_text() for path in folder.iterdir()]

    group = f"'gloo', init_method='file://{tmp_path}/store', rank=0, world_size=1"
    begin = f"import torch.distributed\ntorch.distributed.init_process_group({group})\n"
    expected = ends("theirs", begin + PROGRAM.format(library="torch.nn.parallel"), 1)
    assert ends("ours", PROGRAM.format(library="gossamer.compat.ddp"), 2) == 2 * expected
