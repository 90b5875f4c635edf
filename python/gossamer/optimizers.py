"""Which of the engine's rules computes what an optimizer of PyTorch computes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from .optim import EngineOptimizer

__all__ = [
    "Rule",
    "StateNames",
    "needs_own_step",
    "rule_of_group",
    "rules_of",
    "state_names",
    "steps_by_parameter",
]

# The classes of torch.optim that update every parameter by itself, so that their step() may be
# called for some parameters after the others.
_BY_PARAMETER = {
    "ASGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Muon",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
}

# The modules that have AccumAdam and AccumAdamW.
_DECENT_DP = ("decent_dp.optim", "gossamer.compat.decent_dp.optim")


class Rule(NamedTuple):
    """A rule of the engine, and the numbers of one group of parameters."""

    kind: str
    """Rules of one kind differ in numbers alone."""
    text: str
    """The rule as the engine reads it."""
    lr: float
    weight_decay: float
    states: tuple[str, ...] | None = None
    """The states of an EngineOptimizer, which PyTorch knows by the engine's names."""


class StateNames(NamedTuple):
    """How PyTorch and the engine name the states of an optimizer."""

    names: dict[str, str]
    """The engine's name of each state that PyTorch keeps for a parameter."""
    counts: bool
    """Whether PyTorch keeps a number "step" as well."""
    step_dtype: torch.dtype
    """The type of that number."""


def state_names(rule: Rule) -> StateNames:
    """Return the names of the states that a rule of the engine has."""
    if rule.states is not None:
        return StateNames({name: name for name in rule.states}, True, torch.int64)
    moments = {"exp_avg": "m", "exp_avg_sq": "v"}
    if rule.kind in ("adam", "adamw"):
        default = torch.get_default_dtype()
        return StateNames(moments, True, default if default == torch.float64 else torch.float32)
    if rule.kind in ("accum_adam", "accum_adamw"):
        return StateNames(moments | {"accum_grad": "accumulator"}, True, torch.int64)
    has_momentum = rule.kind.startswith("sgd with momentum")
    return StateNames({"momentum_buffer": "momentum"} if has_momentum else {}, False, torch.int64)


def steps_by_parameter(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether step() may be called for some parameters after the others.

    True for the classes of torch.optim that are known to update every parameter by itself, unless
    hooks see the whole step before it is made.
    """
    kind = type(optimizer)
    return (
        kind.__name__ in _BY_PARAMETER
        and getattr(torch.optim, kind.__name__, None) is kind
        and not needs_own_step(optimizer)
    )


def needs_own_step(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether only the object's own step() does what the user has asked for.

    Hooks before a step may change its gradients. A step() that was replaced in this object
    alone may do anything; a schedule of PyTorch replaces it, too, and only looks on.
    """
    own = vars(optimizer).get("step")
    is_replaced = own is not None and not getattr(own, "_wrapped_by_lr_sched", False)
    return is_replaced or len(optimizer._optimizer_step_pre_hooks) > 0


def rule_of_group(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> Rule | None:
    """Return the engine's rule for a group of an optimizer; None if the engine has none."""
    if isinstance(optimizer, EngineOptimizer):
        options: dict[str, Any] = {"name": optimizer.engine_name} | optimizer.engine_options(group)
        return Rule(
            f"{optimizer.engine_name} {group.get('rule', '')}",
            json.dumps(options),
            float(group["lr"]),
            float(group["weight_decay"]),
            optimizer.engine_states,
        )
    name = _known_name(optimizer)
    if group.get("maximize") or group.get("amsgrad"):
        return None
    options = {}
    if name in ("Adam", "AdamW"):
        decoupled = name == "AdamW" or group.get("decoupled_weight_decay", False)
        options = {"name": "adamw" if decoupled else "adam"} | _moments(group)
        kind = options["name"]
    elif name in ("AccumAdam", "AccumAdamW"):
        kind = "accum_adamw" if name == "AccumAdamW" else "accum_adam"
        options = {"name": kind} | _moments(group) | {"accum_iter": group["accum_iter"]}
    elif name == "SGD" and not group["dampening"]:
        momentum, nesterov = float(group["momentum"]), bool(group["nesterov"])
        options = {"name": "sgd"}
        kind = "sgd"
        if momentum:
            options |= {"momentum": momentum, "nesterov": nesterov}
            kind = f"sgd with momentum, nesterov {nesterov}"
    else:
        return None
    return Rule(kind, json.dumps(options), float(group["lr"]), float(group["weight_decay"]))


def rules_of(optimizer: torch.optim.Optimizer) -> list[Rule] | None:
    """Return the rule of each group; None if the engine cannot do the optimizer's work."""
    rules = [rule_of_group(optimizer, group) for group in optimizer.param_groups]
    known = [rule for rule in rules if rule is not None]
    if len(known) < len(rules) or len({rule.kind for rule in known}) > 1:
        return None
    return known


def _moments(group: Mapping[str, Any]) -> dict[str, Any]:
    beta1, beta2 = group["betas"]
    return {"betas": [float(beta1), float(beta2)], "eps": float(group["eps"])}


def _known_name(optimizer: torch.optim.Optimizer) -> str:
    """Return the name of the class; empty for what may do something else, as a subclass."""
    if hasattr(optimizer, "pre_average_hook"):
        return ""
    kind = type(optimizer)
    if kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        return kind.__name__
    return kind.__name__ if kind.__module__ in _DECENT_DP else ""
