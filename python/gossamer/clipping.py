"""Clipping of gradients that are used up when backward() returns."""

from __future__ import annotations

import functools
import math
import types
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.nn.utils import clip_grad

from . import _core
from .hooks import GradientHook

__all__ = ["Clipping", "clipping_above"]

_BY_NORM, _BY_VALUE = "clip_grad_norm_", "clip_grad_value_"


class Clipping:
    """The norm by which the engine clips, which a training loop may set after every step.

    Parameters
    ----------
    options
        The engine's options; grad_clip and grad_clip_norm say how it clips at first.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        is_global = options.get("grad_clip") == "global"
        self._norm = float(options.get("grad_clip_norm", 1.0)) if is_global else math.inf
        _watch_pytorch()
        self._has_warned = False
        self._has_changed = False

    def change(self, engine: _core.Engine, norm: float) -> None:
        """Clip by a norm from the next step on."""
        if not norm > 0:
            raise _core.ConfigError(f"max_norm is {norm}, allowed: a number > 0")
        if norm == self._norm:
            return
        if math.isinf(self._norm) and not self._has_warned:
            self._warn(
                "clip_grad_norm_() clips from the next step on, because backward() has made this "
                f'one; wrap with options={{"grad_clip": "global", "grad_clip_norm": {norm}}} to '
                "clip the first step, too"
            )
        engine.set_clip_norm(min(norm, 1e300))
        self._norm, self._has_changed = norm, True

    def renew(self, engine: _core.Engine) -> None:
        """Go on with another engine, which has the options of the first one."""
        if self._has_changed:
            engine.set_clip_norm(min(self._norm, 1e300))

    def warn_of_no_gradients(self, function: str = _BY_NORM) -> None:
        """Say, once, that a function of PyTorch clips nothing.

        Raises
        ------
        ConfigError
            For clip_grad_value_(), which would fail without gradients and name no reason.
        """
        if function == _BY_VALUE:
            raise _core.ConfigError(
                "clip_grad_value_() finds no gradient, because backward() has used the gradients, "
                "allowed: model.clip_grad_norm_(max_norm), or p.register_hook(lambda g: "
                "g.clamp(-value, value)) for each parameter before the module is wrapped"
            )
        if self._has_warned:
            return
        self._warn(
            "torch.nn.utils clips no gradient of a wrapped module and returns 0, because "
            "backward() has used the gradients; call model.clip_grad_norm_(max_norm), or wrap with "
            'options={"grad_clip": "global", "grad_clip_norm": max_norm}'
        )

    def _warn(self, text: str) -> None:
        self._has_warned = True
        warnings.warn(text, stacklevel=4)


def clipping_above(frame: types.FrameType | None) -> str:
    """Return which of PyTorch's functions that clip has this frame, or a list in it; else ""."""
    for _ in range(2):
        if frame is None:
            return ""
        name = frame.f_code.co_name
        if name in (_BY_NORM, _BY_VALUE) and "clip_grad" in frame.f_code.co_filename:
            return name
        frame = frame.f_back
    return ""


def _watch_pytorch() -> None:
    """Have PyTorch's clip_grad_norm_() look for wrappers that have used the gradients.

    Its parameters may be those of the module, which knows no wrapper. The part of it that is
    replaced is looked up at every call, so that it does not matter who has imported the function.
    """
    name = "_clip_grads_with_norm_"
    if not hasattr(clip_grad, name):
        return _watch_old_pytorch()
    clip = getattr(clip_grad, name)
    if not hasattr(clip, "warns_of_used_gradients"):
        setattr(clip_grad, name, _with_look(clip))


def _watch_old_pytorch() -> None:
    """Replace the function that a decorator has put into clip_grad_norm_(), before PyTorch 2.6."""
    whole: Any = clip_grad.clip_grad_norm_
    wrapped = getattr(whole, "__wrapped__", whole)
    for cell in whole.__closure__ or ():
        if cell.cell_contents is wrapped:
            cell.cell_contents = _with_look(wrapped)


def _with_look(clip: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(clip)
    def clip_and_look(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        _warn_of_used_gradients(given)
        return clip(given, *args, **kwargs)

    clip_and_look.warns_of_used_gradients = True  # type: ignore[attr-defined]
    return clip_and_look


def _warn_of_used_gradients(parameters: Iterable[torch.Tensor]) -> None:
    """Have the wrapper of parameters warn, if it has used their gradients and there are none."""
    for p in parameters:
        if p.grad is not None:
            return
        for hook in (getattr(p, "_post_accumulate_grad_hooks", None) or {}).values():
            model = hook.model if isinstance(hook, GradientHook) else None
            if model is not None and model._updates_in_backward:
                own: Any = model._clipping
                own.warn_of_no_gradients()
                return
