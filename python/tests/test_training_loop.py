"""What a training loop of PyTorch brings along: scalers, names, timelines, hooks, shards."""

from __future__ import annotations

import json

import pytest
import torch
from conftest import DEVICE, alone, flat, loss_of, make_mlp, rank, run_python
from test_optimizers import OPTIMIZERS

import gossamer as gs

ADAMW = OPTIMIZERS["adamw"]
BAD_STEP = 3


def scaled_loss(model, scaler, step):
    loss = loss_of(model, 0, step)
    return scaler.scale(loss * float("inf") if step == BAD_STEP else loss)


def make_scaler(**options):
    return torch.amp.GradScaler(DEVICE.type, init_scale=512.0, growth_interval=4, **options)


@pytest.mark.parametrize("name", ["adamw", "momentum"])
def test_a_gradient_scaler_works_as_with_the_optimizer_alone(name):
    plain = make_mlp()
    optimizer = OPTIMIZERS[name](list(plain.parameters()))
    scaler = make_scaler()
    scales = []
    for step in range(12):
        scaled_loss(plain, scaler, step).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())

    def train(calls_step):
        scaler = make_scaler()
        model = make_mlp()
        wrapper = gs.DecentralizedDataParallel(model, OPTIMIZERS[name], scaler=scaler)
        own = []
        for step in range(12):
            scaled_loss(wrapper, scaler, step).backward()
            if calls_step:
                scaler.step(wrapper.optimizer)
            scaler.update()
            own.append(scaler.get_scale())
        assert wrapper.metrics()["skipped_steps"] == 1
        assert own == scales
        return flat(model)

    assert len(set(scales)) > 2
    with pytest.warns(UserWarning, match="backward\\(\\) makes the whole step"):
        habit = alone(lambda: train(True))
    assert (habit - flat(plain)).abs().max() < 5e-7
    assert torch.equal(alone(lambda: train(False)), habit)


def test_a_scaler_goes_on_after_loading(tmp_path):
    def work():
        def make():
            scaler = make_scaler()
            return scaler, gs.DecentralizedDataParallel(make_mlp(), ADAMW, scaler=scaler)

        scaler, wrapper = make()
        for step in range(BAD_STEP + 1):
            scaled_loss(wrapper, scaler, step).backward()
            scaler.update()
        wrapper.save(tmp_path)
        again, other = make()
        other.load(tmp_path)
        again.load_state_dict(scaler.state_dict())
        scaled_loss(other, again, BAD_STEP + 1).backward()
        again.update()
        assert again.get_scale() == scaler.get_scale() == 256.0

    alone(work)


def test_the_recipe_of_a_scaler_names_the_options():
    def work():
        scaler = make_scaler()
        wrapper = gs.DecentralizedDataParallel(make_mlp(), ADAMW, scaler=scaler)
        scaled_loss(wrapper, scaler, 0).backward()
        with pytest.raises(gs.ConfigError, match="grad_clip_norm"):
            scaler.unscale_(wrapper.optimizer)
        scaler.update()
        # An optimizer of another model is its own business.
        other = make_mlp()
        plain = ADAMW(list(other.parameters()))
        scaler.scale(loss_of(other, 0, 0)).backward()
        scaler.unscale_(plain)
        wrapper.finish()
        assert "unscale_" not in vars(scaler)

    alone(work)


@pytest.mark.filterwarnings("ignore:GradScaler is going to stop:FutureWarning")
@pytest.mark.parametrize("calls_unscale", [False, True])
def test_a_scaler_that_the_wrapper_does_not_know_is_refused(calls_unscale):
    def work():
        scaler = make_scaler()
        wrapper = gs.DecentralizedDataParallel(make_mlp(), ADAMW)
        scaled_loss(wrapper, scaler, 0).backward()
        if calls_unscale:
            scaler.unscale_(wrapper.optimizer)
        scaler.step(wrapper.optimizer)

    with pytest.raises(gs.ConfigError, match="scaler=scaler"):
        alone(work)


def test_a_scaler_that_is_off_changes_nothing():
    def train(**options):
        model = make_mlp()
        wrapper = gs.DecentralizedDataParallel(model, ADAMW, **options)
        for step in range(5):
            loss_of(wrapper, 0, step).backward()
        return flat(model)

    without = alone(train)
    assert torch.equal(alone(lambda: train(scaler=make_scaler(enabled=False))), without)


def test_an_optimizer_may_be_made_from_names():
    def decays(named):
        groups = [
            {"params": [p for n, p in named if n.endswith("weight")], "weight_decay": 0.5},
            {"params": [p for n, p in named if n.endswith("bias")], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=0.01)

    plain = make_mlp()
    optimizer = decays(list(plain.named_parameters()))
    for step in range(5):
        loss_of(plain, 0, step).backward()
        optimizer.step()
        optimizer.zero_grad()

    def train():
        model = make_mlp()
        wrapper = gs.DecentralizedDataParallel(model, decays, with_names=True)
        for step in range(5):
            loss_of(wrapper, 0, step).backward()
        return flat(model)

    assert (alone(train) - flat(plain)).abs().max() < 5e-7


def test_a_timeline_has_the_steps_of_all_ranks(tmp_path):
    path = tmp_path / "timeline.json"

    def train():
        wrapper = gs.DecentralizedDataParallel(
            make_mlp(), ADAMW, "ring", options={"timeline": str(path), "timeline_steps": [3, 6]}
        )
        for step in range(8):
            loss_of(wrapper, rank(), step).backward()
        wrapper.finish()

    gs.run_threads(2, train)
    events = json.loads(path.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    for name in ("forward", "backward", "update"):
        own = [span for span in spans if span["name"].startswith(name)]
        for pid in (0, 1):
            steps = {span["args"]["step"] for span in own if span["pid"] == pid}
            assert steps == {4, 5, 6}, name


def test_a_timeline_of_ranks_that_count_for_themselves_is_refused(tmp_path):
    options = {"timeline": str(tmp_path / "t.json")}
    with pytest.raises(gs.ConfigError, match="different numbers of steps"):
        alone(
            lambda: gs.DecentralizedDataParallel(
                make_mlp(), ADAMW, algorithm="async_gossip", options=options
            )
        )


def test_hooks_before_wrapping_see_gradients_and_change_them():
    def halve(p):
        p.grad.mul_(0.5)

    plain = make_mlp()
    optimizer = OPTIMIZERS["momentum"](list(plain.parameters()))
    for step in range(4):
        loss_of(plain, 0, step).backward()
        for p in plain.parameters():
            p.grad.mul_(0.5)
        optimizer.step()
        optimizer.zero_grad()

    def train():
        model = make_mlp()
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(halve)
        wrapper = gs.DecentralizedDataParallel(model, OPTIMIZERS["momentum"])
        for step in range(4):
            loss_of(wrapper, 0, step).backward()
        return flat(model)

    assert (alone(train) - flat(plain)).abs().max() < 5e-7


def test_compiled_autograd_is_refused():
    from torch._dynamo import compiled_autograd

    enable = getattr(compiled_autograd, "_enable", None) or compiled_autograd.enable

    def train():
        wrapper = gs.DecentralizedDataParallel(make_mlp(), ADAMW)
        loss_of(wrapper, 0, 0).backward()
        with enable(lambda graph: graph), pytest.raises(gs.ConfigError, match="compiled autograd"):
            loss_of(wrapper, 0, 1)
        loss_of(wrapper, 0, 1).backward()
        assert wrapper.metrics()["steps"] == 2

    alone(train)


# In a process of its own: fully_shard() of PyTorch 2.11 crashes in one whose threads have compiled.
SHARDED = """
import torch, gossamer as gs
from torch.distributed import fsdp
store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
gs.initialize_dist("threads")
sharded = torch.nn.Sequential(torch.nn.Linear(8, 16))
fsdp.fully_shard(sharded[0], mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (1,)))
for module in (sharded, torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))):
    try:
        gs.DecentralizedDataParallel(module, lambda ps: torch.optim.SGD(ps))
    except gs.ConfigError as error:
        print(error)
torch.distributed.destroy_process_group()
"""


def test_sharded_and_synchronized_modules_are_refused():
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this PyTorch has no fully_shard()")
    done = run_python(["-c", SHARDED])
    assert done.returncode == 0, done.stderr
    assert "the module's part 0 is sharded by fully_shard()" in done.stdout
    assert "the module is in DistributedDataParallel, which synchronizes" in done.stdout


def test_clipping_in_the_loop_clips_from_the_second_step_on():
    limit, num_steps = 0.05, 6
    plain = make_mlp()
    optimizer = OPTIMIZERS["sgd"](list(plain.parameters()))
    norms = []
    for step in range(num_steps):
        optimizer.zero_grad()
        loss_of(plain, 0, step).backward()
        # The wrapper has made the first step when the loop says how to clip.
        norm = 1e9 if step == 0 else limit
        norms.append(torch.nn.utils.clip_grad_norm_(plain.parameters(), norm))
        optimizer.step()

    def train():
        model = make_mlp()
        wrapper = gs.DecentralizedDataParallel(model, OPTIMIZERS["sgd"], bucket_size_in_mb=1e-5)
        found = []
        for step in range(num_steps):
            loss_of(wrapper, 0, step).backward()
            found.append(wrapper.clip_grad_norm_(limit))
        assert torch.allclose(torch.stack(found), torch.stack(norms))
        with pytest.raises(gs.ConfigError, match="max_norm is 0"):
            wrapper.clip_grad_norm_(0)
        return flat(model).clone()

    with pytest.warns(UserWarning, match="from the next step on") as caught:
        end = alone(train)
    assert len(caught) == 1
    assert (end - flat(plain)).abs().max() < 5e-7


def test_clipping_by_value_after_backward_names_what_works():
    def train():
        model = make_mlp()
        for p in model.parameters():
            p.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
        before = flat(model)
        wrapper = gs.DecentralizedDataParallel(model, lambda ps: torch.optim.SGD(ps, lr=1.0))
        loss_of(wrapper, 0, 0).backward()
        with pytest.raises(gs.ConfigError, match=r"p.register_hook.*before the module is wrapped"):
            torch.nn.utils.clip_grad_value_(wrapper.parameters(), 1e-3)
        return (flat(model) - before).abs().max()

    assert alone(train) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(
    "given",
    [
        lambda net, wrapper: net.parameters(),
        lambda net, wrapper: wrapper.parameters(),
        lambda net, wrapper: list(wrapper.parameters()),
        lambda net, wrapper: next(net.parameters()),
    ],
    ids=["of the module", "of the wrapper", "a list", "one parameter"],
)
def test_clipping_parameters_whose_gradients_are_used_is_warned_of_once(given):
    def work():
        net = make_mlp()
        wrapper = gs.DecentralizedDataParallel(net, ADAMW)
        with pytest.warns(UserWarning, match="model.clip_grad_norm_") as caught:
            for step in range(3):
                loss_of(wrapper, 0, step).backward()
                assert torch.nn.utils.clip_grad_norm_(given(net, wrapper), 1.0) == 0
        assert len(caught) == 1

    alone(work)


def test_clipping_of_other_modules_is_let_alone(recwarn):
    def work():
        gs.DecentralizedDataParallel(make_mlp(), ADAMW)
        net = make_mlp()
        assert torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0) == 0
        loss_of(net, 0, 0).backward()
        assert torch.nn.utils.clip_grad_norm_(net.parameters(), 1e-3) > 0
        grads = torch.cat([p.grad.flatten() for p in net.parameters()])
        assert grads.norm() == pytest.approx(1e-3, rel=1e-2)

    alone(work)
    assert not [w for w in recwarn if "clip" in str(w.message)]


def test_gradients_that_accumulate_are_clipped_without_a_warning(recwarn):
    def train():
        wrapper = gs.DecentralizedDataParallel(make_mlp(), ADAMW)
        with wrapper.no_sync():
            loss_of(wrapper, 0, 0).backward()
        assert torch.nn.utils.clip_grad_norm_(wrapper.parameters(), 1.0) > 0

    alone(train)
    assert not recwarn.list


def test_a_norm_that_would_clip_nothing_is_refused():
    def work():
        gs.DecentralizedDataParallel(make_mlp(), ADAMW, options={"grad_clip_norm": 1.0})

    with pytest.raises(gs.ConfigError, match=r"grad_clip_norm.*without grad_clip"):
        alone(work)
