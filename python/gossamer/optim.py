"""Optimizers whose work the engine alone does: rules that PyTorch lacks, or that belong to gossip.

They train in the wrapper, which calls no ``step()``::

    model = gs.DecentralizedDataParallel(net, lambda ps: gs.optim.Lion(ps, lr=1e-4), "base-k")

Groups of parameters may have numbers of their own, and schedules change them, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

import torch
from torch.optim.optimizer import ParamsT

from . import _core

__all__ = ["QGSGD", "Adam", "AdamW", "EngineOptimizer", "Extra", "Lion", "Muon", "QAdam"]

_Betas = tuple[float, float]


class EngineOptimizer(torch.optim.Optimizer):
    """An optimizer that the engine knows by a name, with the numbers of its groups."""

    engine_name: ClassVar[str]
    """The name, as ``gossamer list optimizers`` has it."""
    engine_numbers: ClassVar[tuple[str, ...]]
    """The options that a group has beside the rate and the decay."""
    engine_states: ClassVar[tuple[str, ...]]
    """The states that it keeps for each parameter."""

    def engine_options(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return the engine's options for a group, without the rate and the decay."""
        # By name, because schedules keep numbers of their own in a group.
        return {key: group[key] for key in self.engine_numbers}

    def step(self, closure: Any = None) -> NoReturn:
        """Refuse to be called outside the wrapper.

        Raises
        ------
        ConfigError
            Always; the wrapper takes this function's place.
        """
        raise _core.ConfigError(
            f"{type(self).__name__} is gossamer's own and makes no step by itself, allowed: to "
            "train it in DecentralizedDataParallel(), whose backward() makes the steps"
        )


class Adam(EngineOptimizer):
    """Adam whose momentum may take up what mixing moves a parameter by.

    Parameters
    ----------
    params
        As in PyTorch.
    lr, betas, eps, weight_decay
        As in PyTorch.
    mixing_momentum
        The part of the movement by mixing that enters the momentum, up to 0.5. Where labels differ
        between the ranks, 0.3 narrows the gap to all-reduce.
    """

    engine_name = "adam"
    engine_numbers = ("betas", "eps", "mixing_momentum")
    engine_states = ("m", "v")

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: _Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        mixing_momentum: float = 0.0,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "mixing_momentum": mixing_momentum,
            },
        )


class AdamW(Adam):
    """Adam as above, with a decay of the weights that is apart from the gradient."""

    engine_name = "adamw"

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: _Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        mixing_momentum: float = 0.0,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, mixing_momentum)


class QAdam(EngineOptimizer):
    """Adam whose second moment stands still after a warm-up (Tang et al., 2021).

    For ``algorithm={"name": "allreduce", "sends": "momentum"}`` with a codec.

    Parameters
    ----------
    params, lr, betas, eps, weight_decay
        As in PyTorch's Adam.
    warmup
        The first updates, which are Adam's.
    """

    engine_name = "qadam"
    engine_numbers = ("betas", "eps", "warmup")
    engine_states = ("m", "v")

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: _Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        warmup: int = 100,
    ) -> None:
        super().__init__(
            params,
            {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "warmup": warmup},
        )


class Lion(EngineOptimizer):
    """Steps of one size, by the sign of the momentum (Chen et al., 2023).

    Parameters
    ----------
    params
        As in PyTorch.
    lr, weight_decay
        The rate and the decoupled decay.
    betas
        The weights of the old momentum: in the step, and in the new momentum.
    """

    engine_name = "lion"
    engine_numbers = ("betas",)
    engine_states = ("m",)

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-4,
        betas: _Betas = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})


class Muon(EngineOptimizer):
    """Orthogonal steps of matrices, by Newton-Schulz (Jordan et al., 2024).

    Every parameter must be a matrix.

    Parameters
    ----------
    params, lr, weight_decay, momentum, nesterov, eps, ns_steps
        As in ``torch.optim.Muon``.
    adjust_lr_fn
        "original" or "match_rms_adamw", as there; None: "original".
    """

    engine_name = "muon"
    engine_numbers = ("momentum", "nesterov", "eps", "ns_steps", "adjust_lr")
    engine_states = ("momentum",)

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "weight_decay": weight_decay,
                "momentum": momentum,
                "nesterov": nesterov,
                "eps": eps,
                "ns_steps": ns_steps,
                "adjust_lr": adjust_lr_fn or "original",
            },
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take a group of matrices.

        Raises
        ------
        ConfigError
            For parameters of one dimension, as biases.
        """
        super().add_param_group(param_group)
        shapes = [list(p.shape) for p in self.param_groups[-1]["params"] if p.ndim < 2]
        if shapes:
            raise _core.ConfigError(
                f"Muon has parameters that are no matrices, of the shapes {shapes[:5]}, allowed: "
                "matrices alone, as in layers without bias"
            )


class QGSGD(EngineOptimizer):
    """Gradient descent with quasi-global momentum, for gossip (Lin et al., 2021).

    Parameters
    ----------
    params
        As in PyTorch.
    lr, weight_decay
        The rate and the decay.
    beta
        The weight of the buffer in a step.
    mu
        The weight of the old buffer in the new one; None: the value of beta.
    """

    engine_name = "qg_sgd"
    engine_numbers = ("beta", "mu")
    engine_states = ("momentum",)

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        beta: float = 0.9,
        mu: float | None = None,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "beta": beta,
                "mu": beta if mu is None else mu,
                "weight_decay": weight_decay,
            },
        )


class Extra(EngineOptimizer):
    """EXTRA's correction of gossip's drift, around another rule (Shi et al., 2015).

    Parameters
    ----------
    params
        As in PyTorch.
    lr, weight_decay
        The rate and the decay.
    rule
        The rule inside: "sgd", "adam", "adamw" or "lion".
    """

    engine_name = "extra"
    engine_numbers = ("rule",)

    def __init__(
        self, params: ParamsT, lr: float = 1e-3, rule: str = "sgd", weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "rule": rule, "weight_decay": weight_decay})

    @property
    def engine_states(self) -> tuple[str, ...]:  # type: ignore[override]
        """The states of the rule inside, and EXTRA's own."""
        inner = {kind.engine_name: kind.engine_states for kind in (Adam, AdamW, Lion)}
        return (*inner.get(self.param_groups[0]["rule"], ()), "extra")
