"""decent-dp's optimizers, its functions that make optimizers, and its schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    SequentialLR,
)

__all__ = [
    "AccumAdam",
    "AccumAdamW",
    "lr_scheduler_fn_cosine_with_warmup",
    "optim_fn_accum_adam",
    "optim_fn_accum_adamw",
    "optim_fn_adam",
    "optim_fn_adamw",
]

NamedParameters = Iterable[tuple[str, torch.Tensor]]


def optim_fn_adam(
    params: NamedParameters,
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    weight_decay: float = 1.0 / 32768,
    eps: float = 1e-8,
) -> torch.optim.Optimizer:
    """Make an Adam that decays, as decent-dp does, names with "bn" or "bias" and no others."""
    groups = _groups(params, weight_decay)
    return torch.optim.Adam(groups, lr=lr, betas=(beta1, beta2), eps=eps)


def optim_fn_adamw(
    params: NamedParameters,
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    weight_decay: float = 0.1,
    eps: float = 1e-8,
) -> torch.optim.Optimizer:
    """Make an AdamW that decays, as decent-dp does, names with "bn" or "bias" and no others."""
    groups = _groups(params, weight_decay)
    return torch.optim.AdamW(groups, lr=lr, betas=(beta1, beta2), eps=eps)


def optim_fn_accum_adam(
    params: NamedParameters,
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1.0 / 32768,
    accum_iter: int = 4,
) -> torch.optim.Optimizer:
    """Make an AccumAdam that decays names with "bn" or "bias" and no others."""
    groups = _groups(params, weight_decay)
    return AccumAdam(groups, lr=lr, betas=(beta1, beta2), eps=eps, accum_iter=accum_iter)


def optim_fn_accum_adamw(
    params: NamedParameters,
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.1,
    accum_iter: int = 4,
) -> torch.optim.Optimizer:
    """Make an AccumAdamW that decays names with "bn" or "bias" and no others."""
    groups = _groups(params, weight_decay)
    return AccumAdamW(groups, lr=lr, betas=(beta1, beta2), eps=eps, accum_iter=accum_iter)


def lr_scheduler_fn_cosine_with_warmup(
    optimizer: torch.optim.Optimizer,
    t_max: int,
    t_warmup: int,
    cosine_eta_min: float = 1e-6,
    warmup_decay: float = 0.01,
) -> LRScheduler:
    """Make a schedule: a linear warmup, and half a cosine after it.

    Parameters
    ----------
    optimizer
        The optimizer whose rates it sets.
    t_max
        Steps of the half cosine.
    t_warmup
        Steps of the warmup.
    cosine_eta_min
        The rate at the end of the cosine.
    warmup_decay
        The part of the rate with which the warmup begins.
    """
    cosine = CosineAnnealingLR(optimizer, T_max=t_max, eta_min=cosine_eta_min)
    warmup = LinearLR(optimizer, start_factor=warmup_decay, total_iters=t_warmup)
    return SequentialLR(optimizer, [warmup, cosine], milestones=[t_warmup])


class _Accumulating(torch.optim.Optimizer):
    """Adam whose moments take in the mean gradient of `accum_iter` steps.

    Each step updates with the moments and its own gradient; the moments themselves change only at
    the end of `accum_iter` steps.
    """

    _decouples_decay: bool

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        accum_iter: int = 4,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "accum_iter": accum_iter,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, p.grad, group)
        return loss

    def _update(self, p: torch.Tensor, grad: torch.Tensor, group: dict[str, Any]) -> None:
        state = self._state_of(p)
        beta1, beta2 = group["betas"]
        num_steps, decay = group["accum_iter"], group["weight_decay"]
        if self._decouples_decay:
            p.mul_(1 - group["lr"] * decay)
        else:
            grad = grad.add(p, alpha=decay)
        mean, square, total = state["exp_avg"], state["exp_avg_sq"], state["accum_grad"]
        state["step"] += 1
        step = int(state["step"])
        total.add_(grad, alpha=1 / num_steps)
        num_changes = math.ceil(step / num_steps)
        root = square.addcmul(grad, grad, value=1 - beta2).sqrt_()
        root.div_(math.sqrt(1 - beta2**num_changes)).add_(group["eps"])
        rate = group["lr"] / (1 - beta1**num_changes)
        p.addcdiv_(mean.add(grad, alpha=1 - beta1), root, value=-rate)
        if step % num_steps == 0:
            # Both are kept with the factor of their next use.
            mean.add_(total, alpha=1 - beta1).mul_(beta1)
            square.addcmul_(total, total, value=1 - beta2).mul_(beta2)
            total.zero_()

    def _state_of(self, p: torch.Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self.state[p]
        if not state:
            state["step"] = torch.tensor(0, dtype=torch.int64)
            for name in ("exp_avg", "exp_avg_sq", "accum_grad"):
                state[name] = torch.zeros_like(p, memory_format=torch.preserve_format)
        return state


class AccumAdam(_Accumulating):
    """Adam whose moments take in the mean gradient of several steps.

    Parameters
    ----------
    params
        Parameters, or groups of them.
    lr, betas, eps, weight_decay
        As in torch.optim.Adam.
    accum_iter
        The number of steps after which the moments change.
    """

    _decouples_decay = False


class AccumAdamW(_Accumulating):
    """AdamW whose moments take in the mean gradient of several steps.

    Parameters
    ----------
    params
        Parameters, or groups of them.
    lr, betas, eps, weight_decay
        As in torch.optim.AdamW.
    accum_iter
        The number of steps after which the moments change.
    """

    _decouples_decay = True


def _groups(params: NamedParameters, weight_decay: float) -> list[dict[str, Any]]:
    named = list(params)
    decayed = [p for name, p in named if "bn" in name or "bias" in name]
    others = [p for name, p in named if "bn" not in name and "bias" not in name]
    return [
        {"params": others, "weight_decay": 0.0},
        {"params": decayed, "weight_decay": weight_decay},
    ]
