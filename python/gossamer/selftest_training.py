"""The self-test's checks that need PyTorch: training that PyTorch alone can check."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ._core import num_gpus
from .data_parallel import DecentralizedDataParallel
from .distributed import current_session, run_threads
from .selftest import Check, expect_small
from .topologies import topology

__all__ = ["ALONE", "TOGETHER"]

Optimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def _momentum(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)


def _adamw(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def _rmsprop(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(parameters, lr=0.01)


def _make_model() -> torch.nn.Module:
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 2))
    # Ranks that are threads share PyTorch's own generator.
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.5 * torch.randn(p.shape, generator=generator))
    return model


def _loss(model: torch.nn.Module, ranks: Iterable[int], step: int) -> torch.Tensor:
    """Return the mean loss of the ranks' batches, which one linear function fits."""
    losses = []
    for rank in ranks:
        x = torch.randn(16, 6, generator=torch.Generator().manual_seed(1000 * rank + step))
        x = x.to(next(model.parameters()).device)
        target = torch.stack([x.sum(1), x[:, 0] - x[:, 1]], dim=1)
        losses.append((model(x) - target).square().mean())
    return torch.stack(losses).mean()


def _flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone().cpu()


def _train(wrapper: DecentralizedDataParallel, steps: Iterable[int]) -> torch.Tensor:
    for step in steps:
        torch.autograd.backward(_loss(wrapper, [wrapper.session.rank], step))
    return _flat(wrapper.module)


def _train_plain(optim_fn: Optimizer, ranks: Iterable[int], num_steps: int) -> torch.Tensor:
    model = _make_model()
    optimizer = optim_fn(list(model.parameters()))
    for step in range(num_steps):
        optimizer.zero_grad()
        torch.autograd.backward(_loss(model, ranks, step))
        optimizer.step()
    return _flat(model)


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a - b).abs().max().item()


def check_alone(optim_fn: Optimizer, device: str = "cpu", limit: float = 1e-6) -> None:
    """Compare a world of one rank with the optimizer of PyTorch on the processor."""

    def work() -> torch.Tensor:
        wrapper = DecentralizedDataParallel(_make_model().to(device), optim_fn, "ring")
        return _train(wrapper, range(20))

    (end,) = run_threads(1, work)
    expect_small("distance", _distance(end, _train_plain(optim_fn, [0], 20)), limit)


def check_all_reduce() -> None:
    """Compare with one process that has the batches of all ranks."""
    wrapper = DecentralizedDataParallel(_make_model(), _momentum, algorithm="allreduce")
    expected = _train_plain(_momentum, range(wrapper.session.world_size), 20)
    expect_small("distance", _distance(_train(wrapper, range(20)), expected), 1e-5)


def check_gossip(name: str) -> None:
    """Compare with x' = W x - lr g, where the first step mixes nothing."""
    lr, num_steps = 0.02, 10
    wrapper = DecentralizedDataParallel(
        _make_model(), lambda parameters: torch.optim.SGD(parameters, lr=lr), name
    )
    size = wrapper.session.world_size
    rounds = topology(name, size)
    models = [_make_model() for _ in range(size)]
    for step in range(num_steps):
        x = torch.stack([_flat(model) for model in models])
        if step > 0:
            x = torch.tensor(rounds.matrix(step - 1), dtype=x.dtype) @ x
        for rank, model in enumerate(models):
            model.zero_grad()
            torch.autograd.backward(_loss(model, [rank], step))
            gradient = torch.cat(
                [p.grad.flatten() for p in model.parameters() if p.grad is not None]
            )
            torch.nn.utils.vector_to_parameters(x[rank] - lr * gradient, model.parameters())
    expected = _flat(models[wrapper.session.rank])
    expect_small("distance", _distance(_train(wrapper, range(num_steps)), expected), 1e-5)


def check_mean(options: dict[str, Any]) -> None:
    """Look whether the loss of the ranks' mean becomes small."""
    wrapper = DecentralizedDataParallel(_make_model(), _momentum, **options)
    begin = _loss(wrapper, [0], 1000).item()
    _train(wrapper, range(100))
    with wrapper.global_average():
        mean = _flat(wrapper.module)
        end = _loss(wrapper, [0], 1000).item()
    others = current_session().all_gather(repr(mean.double().sum().item()))
    expect_small("number of different means", len(set(others)), 1)
    expect_small("loss of the mean, as part of the first loss", end / begin, 0.01)


def check_saved() -> None:
    """Compare a run that is saved and loaded with one that goes on."""
    for optim_fn in (_adamw, _rmsprop):
        with tempfile.TemporaryDirectory() as folder:
            wrapper = DecentralizedDataParallel(_make_model(), optim_fn, "ring")
            _train(wrapper, range(5))
            wrapper.save(folder)
            end = _train(wrapper, range(5, 10))
            loaded = DecentralizedDataParallel(_make_model(), optim_fn, "ring")
            loaded.load(folder)
            expect_small("distance", _distance(_train(loaded, range(5, 10)), end), 0.0)


_TOPOLOGIES = ("ring", "complete", "base-k", "star", "random-matching")
_MEANS: tuple[dict[str, Any], ...] = (
    {"topology": "ring"},
    {"topology": "directed-one-peer-exp"},
    {"topology": "ring", "codec": "bf16"},
    {"topology": "ring", "codec": "int8"},
    {"topology": "ring", "algorithm": "gradient_tracking"},
    {"topology": "chain", "algorithm": "relay"},
    {"algorithm": "local"},
)

ALONE = [
    Check(f"a rank alone is PyTorch's {name}", functools.partial(check_alone, optim_fn))
    for name, optim_fn in (("SGD", _momentum), ("AdamW", _adamw), ("RMSprop", _rmsprop))
]
if torch.cuda.is_available() and num_gpus() > 0:
    # A GPU adds in another order.
    ALONE += [
        Check(
            f"a rank alone on a GPU is PyTorch's {name}",
            functools.partial(check_alone, optim_fn, "cuda", 1e-4),
        )
        for name, optim_fn in (("SGD", _momentum), ("RMSprop", _rmsprop))
    ]
"""What only a process alone can check, because mpirun's processes are never alone."""

TOGETHER = [
    Check("all-reduce is one process with all batches", check_all_reduce),
    *(
        Check(f"gossip mixes: {name}", functools.partial(check_gossip, name))
        for name in _TOPOLOGIES
    ),
    *(
        Check(
            f"the mean learns: {', '.join(options.values())}",
            functools.partial(check_mean, options),
        )
        for options in _MEANS
    ),
    Check("a saved run goes on bit for bit", check_saved),
]
"""What ranks check that are threads or processes."""
