"""How long the forward and backward passes of a model take, for plans."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from . import _core
from .checks import check_module

__all__ = ["measure_compute"]


def measure_compute(
    model: torch.nn.Module,
    batch: Any,
    loss_fn: Callable[[Any, Any], torch.Tensor] | None = None,
    *,
    steps: int = 20,
    warmup: int = 3,
) -> dict[str, float]:
    """Measure what plan() needs to know of a model: its computing time and its size.

    The module keeps its parameters, buffers and gradients, and PyTorch its random numbers. Measure
    on a machine as each rank has it, with as many threads, and before you wrap the module::

        gs.plan(world_size=4, between_gbit=0.1, **gs.measure_compute(net, (x, y), loss_fn))

    Parameters
    ----------
    model
        The module, on the device where it will train.
    batch
        What one rank takes in one step: a tensor, or a dict of arguments, or with `loss_fn` a pair
        (inputs, targets), without it a sequence of arguments.
    loss_fn
        Makes the loss from the outputs and the targets, as ``torch.nn.CrossEntropyLoss()``. None:
        the outputs are the loss, or have it as ``loss``; of other outputs the mean square stands
        for it.
    steps
        Timed steps.
    warmup
        Steps before them.

    Returns
    -------
    dict
        "compute_ms", the median time of forward and backward in milliseconds; "backward_share", the
        part of it that is backward, 0 to 1; "model_bytes", 4 bytes for each parameter that trains.

    Raises
    ------
    ConfigError
        For a wrapped module, one without parameters that train, and numbers of steps below 1.
    """
    if steps < 1 or warmup < 0:
        raise _core.ConfigError(
            f"steps: {steps} and warmup: {warmup} are out of range, allowed: 1 and 0 or more"
        )
    check_module(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise _core.ConfigError("the model has no parameter that requires a gradient")
    times = []
    with _unchanged(model, trained):
        for _ in range(warmup + steps):
            times.append(_time_step(model, batch, loss_fn, trained[0].device))
            for p in trained:
                p.grad = None
    total = statistics.median(forward + backward for forward, backward in times[warmup:])
    backward = statistics.median(backward for _, backward in times[warmup:])
    return {
        "compute_ms": 1e3 * total,
        "backward_share": min(1.0, backward / total) if total > 0 else 0.0,
        "model_bytes": float(4 * sum(p.numel() for p in trained)),
    }


@contextlib.contextmanager
def _unchanged(model: torch.nn.Module, trained: Sequence[torch.Tensor]) -> Iterator[None]:
    gradients = [p.grad for p in trained]
    buffers = [(b, b.clone()) for b in model.buffers()]
    devices = {p.device for p in trained if p.device.type == "cuda"}
    for p in trained:
        p.grad = None
    try:
        with torch.random.fork_rng(devices=list(devices)):
            yield
    finally:
        for p, gradient in zip(trained, gradients, strict=True):
            p.grad = gradient
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def _time_step(
    model: torch.nn.Module,
    batch: Any,
    loss_fn: Callable[[Any, Any], torch.Tensor] | None,
    device: torch.device,
) -> tuple[float, float]:
    """Return the seconds of forward and of backward."""
    begin = _now(device)
    loss = _loss(model, batch, loss_fn)
    middle = _now(device)
    loss.backward()  # type: ignore[no-untyped-call]
    return middle - begin, _now(device) - middle


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _loss(
    model: torch.nn.Module, batch: Any, loss_fn: Callable[[Any, Any], torch.Tensor] | None
) -> torch.Tensor:
    if loss_fn is not None:
        inputs, targets = batch
        return loss_fn(model(inputs), targets)
    if isinstance(batch, Mapping):
        outputs = model(**batch)
    elif isinstance(batch, Sequence) and not isinstance(batch, str):
        outputs = model(*batch)
    else:
        outputs = model(batch)
    loss = getattr(outputs, "loss", None)
    if loss is None:
        loss = outputs[0] if isinstance(outputs, Sequence) else outputs
    if not isinstance(loss, torch.Tensor):
        raise _core.ConfigError(
            f"the model returns {type(loss).__name__}, which is no tensor; give loss_fn"
        )
    return loss if loss.numel() == 1 else loss.float().square().mean()
