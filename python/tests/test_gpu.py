"""What only a GPU shows. The other tests run there with GOSSAMER_TEST_DEVICE=cuda."""

from __future__ import annotations

import gc
import json
import pathlib
import subprocess
import sys

import pytest
import torch
from conftest import alone, flat
from test_optimizers import IN_PYTHON, OPTIMIZERS
from test_sharded import ends_of as ends_of_ranks
from test_sharded import start

import gossamer as gs
from gossamer.compat.ddp import DistributedDataParallel

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or gs._core.num_gpus() == 0,
    reason="no GPU, no CUDA in gossamer, or no GOSSAMER_TEST_DEVICE=cuda",
)
NUM_STEPS = 12


def make_net() -> torch.nn.Module:
    """A model with buffers, and a layer wide enough that a GPU falls behind its host."""
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 2048),
        torch.nn.Tanh(),
        # Without a bias, whose gradient batch normalisation makes zero but for rounding.
        torch.nn.Linear(2048, 2048, bias=False),
        torch.nn.BatchNorm1d(2048),
        torch.nn.Tanh(),
        torch.nn.Linear(2048, 4),
    )


def loss_of(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    # Small, so that the rates of OPTIMIZERS do not shake so wide a model.
    return 0.001 * torch.nn.functional.mse_loss(model(x), y)


def batch(step: int, device: str = "cuda") -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(32, 16, generator=torch.Generator().manual_seed(step)).to(device)
    return x, x[:, :4].sin()


def train(model, optim_fn, num_steps=NUM_STEPS, first=0):
    optimizer = optim_fn(list(model.parameters()))
    for step in range(first, first + num_steps):
        x, y = batch(step)
        loss_of(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def wrapped(optim_fn, context=None, **options):
    def work():
        net = make_net().cuda()
        model = gs.DecentralizedDataParallel(net, optim_fn, **{"bucket_size_in_mb": 2} | options)
        for step in range(NUM_STEPS):
            with context(step) if context else torch.cuda.device(0):
                x, y = batch(step)
                loss_of(model, x, y).backward()
        torch.cuda.synchronize()
        model.finish()
        return flat(net)

    return alone(work)


@pytest.mark.parametrize("name", OPTIMIZERS | IN_PYTHON)
def test_trains_as_the_optimizer_alone(name):
    optim_fn = (OPTIMIZERS | IN_PYTHON)[name]
    if name == "two groups":
        pytest.skip("its groups are those of a smaller model")
    expected = flat(train(make_net().cuda(), optim_fn))
    assert (wrapped(optim_fn) - expected).norm() < 1e-4 * expected.norm()


def test_the_current_stream_may_change():
    streams = [torch.cuda.Stream(), torch.cuda.default_stream(), torch.cuda.Stream()]
    expected = wrapped(OPTIMIZERS["adamw"])

    def context(step):
        stream = streams[step % 3]
        stream.wait_stream(streams[(step - 1) % 3])
        return torch.cuda.stream(stream)

    assert torch.equal(wrapped(OPTIMIZERS["adamw"], context), expected)


class OnTwoStreams(torch.nn.Module):
    """Computes a part of the model, and so its gradients, on a stream of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()
        self.side = torch.cuda.Stream()

    def forward(self, x):
        x = self.net[:3](x)
        main = torch.cuda.current_stream()
        self.side.wait_stream(main)
        with torch.cuda.stream(self.side):
            x = self.net[3:](x)
        main.wait_stream(self.side)
        return x


def test_parts_of_a_model_may_have_streams_of_their_own():
    def work():
        model = OnTwoStreams().cuda()
        wrapper = gs.DecentralizedDataParallel(model, OPTIMIZERS["adamw"], bucket_size_in_mb=2)
        for step in range(NUM_STEPS):
            x, y = batch(step)
            loss_of(wrapper, x, y).backward()
        torch.cuda.synchronize()
        return flat(model)

    assert torch.equal(alone(work), wrapped(OPTIMIZERS["adamw"]))


def test_blocks_are_memory_of_pytorch():
    def work():
        net = make_net().cuda()
        model = gs.DecentralizedDataParallel(net, OPTIMIZERS["adamw"], "ring")
        x, y = batch(0)
        # What other tests have left.
        gc.collect()
        before = torch.cuda.memory_allocated()
        loss_of(model, x, y).backward()
        own = 4 * sum(p.numel() for p in net.parameters())
        # Two moments; parameters have moved.
        assert torch.cuda.memory_allocated() - before >= 2 * own
        model.finish()
        del model
        gc.collect()
        # The parameters keep their blocks.
        assert torch.cuda.memory_allocated() - before < own
        assert torch.isfinite(flat(net)).all()

    alone(work)


def test_averages_and_written_parameters():
    def work():
        net = make_net().cuda()
        model = gs.DecentralizedDataParallel(net, OPTIMIZERS["adamw"])
        x, y = batch(0)
        loss_of(model, x, y).backward()
        own = flat(net)
        with model.global_average() as distance:
            assert distance < 1e-6
        assert torch.equal(flat(net), own)
        with model.write_parameters(), torch.no_grad():
            net[0].weight.fill_(0.25)
        assert (net[0].weight == 0.25).all()
        with torch.no_grad():
            net[0].bias.fill_(0.125)
        with pytest.warns(UserWarning, match="outside of write_parameters"):
            loss_of(model, x, y).backward()
        assert (net[0].bias - 0.125).abs().max() < 0.02

    alone(work)


@pytest.mark.parametrize("ends_on", ["cuda", "cpu"])
def test_a_saved_run_goes_on(tmp_path, ends_on):
    def work(folder, num_steps, first, device):
        net = make_net().to(device)
        model = gs.DecentralizedDataParallel(net, OPTIMIZERS["adamw"], "ring")
        if first > 0:
            model.load(folder)
        for step in range(first, first + num_steps):
            x, y = batch(step, device)
            loss_of(model, x, y).backward()
        if first == 0:
            model.save(folder)
        end = flat(net)
        model.finish()
        return end

    alone(lambda: work(tmp_path / "half", 6, 0, "cuda"))
    whole = alone(lambda: work(tmp_path / "whole", 12, 0, "cuda"))
    resumed = alone(lambda: work(tmp_path / "half", 6, 6, ends_on))
    # Adam's steps are as large for gradients of which rounding decides the sign.
    assert (resumed - whole).norm() <= (0.0 if ends_on == "cuda" else 1e-3) * whole.norm()


def test_a_gradient_that_is_not_finite_ends_training():
    def work():
        model = gs.DecentralizedDataParallel(make_net().cuda(), OPTIMIZERS["adamw"])
        x, y = batch(0)
        loss_of(model, x, y).backward()
        (float("nan") * loss_of(model, x, y)).backward()
        for find in (lambda: loss_of(model, x, y).backward(), model.state_dict, model.finish):
            with pytest.raises(gs.NonFiniteError, match="step 2: the gradient of"):
                find()

    alone(work)


def test_nccl_is_found():
    # PyTorch has loaded it.
    assert gs._core.nccl_version().startswith("2.")


def test_the_drop_in_trains_as_the_optimizer_alone():
    expected = flat(train(make_net().cuda(), OPTIMIZERS["adamw"]))
    for algorithm in ("allreduce", "gossip"):

        def work(algorithm=algorithm):
            net = make_net().cuda()
            model = DistributedDataParallel(net, device_ids=[0], algorithm=algorithm)
            train(model, OPTIMIZERS["adamw"])
            return flat(net)

        assert (alone(work) - expected).norm() < 1e-4 * expected.norm()


def test_ranks_that_are_threads_must_not_share_a_gpu():
    def work():
        options = {"device": {"share": True}}
        gs.DecentralizedDataParallel(
            make_net().cuda(), OPTIMIZERS["adamw"], "ring", options=options
        )

    with pytest.raises(gs.ConfigError, match="are threads of one process"):
        gs.run_threads(2, work)


def test_nodes_that_shard_a_model_share_a_gpu():
    ends = ends_of_ranks(start("sharded_gpu.py", 2, ["cuda"]))
    assert [code for code, _, _ in ends] == [0, 0], ends[0][2]
    found = json.loads(ends[0][1])
    assert found["gossip"] <= 1e-10
    assert found["allreduce"] <= 1e-10
    assert found["at home"]
    assert found["streams"]


PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
import json, torch, gossamer as gs
from test_gpu import OPTIMIZERS, batch, flat, loss_of, make_net
place, rank, device, exchange = sys.argv[1:]
gs.initialize_dist("", 60, rendezvous=place, world_size=3, rank=int(rank), secret=place * 8)
rank = int(rank)
net = make_net().to(device)
model = gs.DecentralizedDataParallel(
    net, OPTIMIZERS["adamw"], **json.loads(exchange),
    options={{"device": {{"share": True}}}} if device == "cuda" else None,
)
for step in range({num_steps}):
    x, y = batch(10 * step + rank, device)
    loss_of(model, x, y).backward()
with model.global_average() as distance:
    mean = flat(net)
print(f"rank {{rank}}: {{mean.norm().item():.9g}} {{distance:.6g}}")
"""


def ends_of(folder: pathlib.Path, device: str, exchange: dict) -> list[list[float]]:
    """Return each rank's norm of the mean and distance from it, of three processes."""
    folder.mkdir()
    program = PROGRAM.format(tests=str(pathlib.Path(__file__).parent), num_steps=NUM_STEPS)
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                program,
                f"file:{folder}",
                str(rank),
                device,
                json.dumps(exchange),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    ends = []
    try:
        for process in processes:
            out, error = process.communicate(timeout=120)
            assert process.returncode == 0, error
            ends.append([float(x) for x in out.split(":")[1].split()])
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return ends


@pytest.mark.parametrize(
    "exchange",
    [
        {"topology": "ring"},
        {"topology": "complete"},
        {"algorithm": "allreduce"},
        {"algorithm": {"name": "outer", "kind": "diloco", "every": 3}, "codec": "int8"},
        {
            "topology": "ring",
            "algorithm": {"name": "outer", "kind": "noloco", "every": 2},
            "codec": "bf16",
        },
    ],
)
def test_processes_that_share_a_gpu_train_as_on_processors(tmp_path, exchange):
    expected = ends_of(tmp_path / "cpu", "cpu", exchange)
    actual = ends_of(tmp_path / "cuda", "cuda", exchange)
    for own, other in zip(actual, expected, strict=True):
        assert own == pytest.approx(other, rel=1e-3, abs=1e-3)
