"""The hooks by which a wrapper learns of gradients, and what they tell of wrong use."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from . import _core

if TYPE_CHECKING:
    from .steps import EngineSteps

__all__ = ["BackwardPasses", "GradientHook", "refuse_wrapped"]


class GradientHook:
    """Tells a wrapper of the gradients of one parameter, and does not keep the wrapper alive.

    Parameters
    ----------
    model
        The wrapper.
    is_first
        Whether the parameter is the first one, whose hook warns of a wrapper that is gone.
    """

    def __init__(self, model: EngineSteps, *, is_first: bool) -> None:
        self._model = weakref.ref(model)
        self._is_first = is_first

    @property
    def model(self) -> EngineSteps | None:
        """The wrapper; None: it is gone."""
        return self._model()

    def __call__(self, p: torch.Tensor) -> None:
        """Pass a gradient on."""
        model = self._model()
        if model is not None:
            model._on_gradient(p)
        elif self._is_first:
            warnings.warn(
                "the DecentralizedDataParallel of this module is gone, so nothing updates or mixes "
                "its parameters; keep the wrapper as long as you train, or call its finish()",
                stacklevel=2,
            )


def refuse_wrapped(named: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
    """Refuse parameters that another wrapper trains, and remove hooks of wrappers that are gone.

    Raises
    ------
    ConfigError
        With the name of such a parameter.
    """
    for name, p in named:
        hooks: dict[int, Any] = getattr(p, "_post_accumulate_grad_hooks", None) or {}
        for key, hook in list(hooks.items()):
            if not isinstance(hook, GradientHook):
                continue
            if hook.model is not None:
                raise _core.ConfigError(
                    f"the module is wrapped already: another wrapper trains parameter {name}, "
                    "allowed: one wrapper for a parameter; call finish() of the other one first"
                )
            del hooks[key]


class BackwardPasses:
    """The backward passes that reach one wrapper.

    It counts those that reach the wrapper alone, and those that reach others too. The loss of a
    generator runs through its discriminator. Where both are wrapped, the discriminator makes a step
    in the generator's passes as well as in its own.
    """

    def __init__(self) -> None:
        self.accumulate = False
        """Whether passes only add to the gradients."""
        self.has_begun = False
        """Whether a pass has begun, and has not ended as it should."""
        self._end: Callable[[], object] = lambda: None
        self._num_alone = 0
        self._num_together = 0
        self._is_together = False
        self._has_warned = False

    @property
    def is_under_way(self) -> bool:
        """Whether a pass is under way. Autograd drops its callbacks when a pass fails."""
        return self.has_begun and self._end() is not None

    def begin(self, end: Callable[[], object], owners: Iterable[Any], own: EngineSteps) -> None:
        """Note that a backward pass has reached the wrapper `own`, and look for others.

        `end` returns None when the pass is over.
        """
        self._end = end
        self._is_together = False
        for other in owners:
            if other is not own and getattr(other, "in_backward", False):
                self._is_together = True
                other._passes._is_together = True

    def count(self) -> None:
        """Count the pass, and warn where there have been passes of both kinds."""
        if self._is_together:
            self._num_together += 1
        else:
            self._num_alone += 1
        if self._num_alone == 0 or self._num_together == 0 or self._has_warned:
            return
        self._has_warned = True
        warnings.warn(
            "this wrapper makes steps in backward passes of its own, and in those of another "
            "wrapper, as a discriminator does in the passes of its generator. If it must make none "
            "there, name the parameters that get gradients: "
            "loss.backward(inputs=list(generator.parameters()))",
            stacklevel=2,
        )
