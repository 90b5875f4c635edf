"""What the wrapper asks of PyTorch's autograd."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable

import torch
from torch.autograd import Variable

from . import _core

__all__ = ["at_end_of_backward", "increment_versions", "refuse_compiled_autograd"]

_VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def at_end_of_backward(action: Callable[[], None]) -> weakref.ref[functools.partial[None]]:
    """Call `action` at the end of the outermost backward pass that runs now.

    Returns
    -------
    weakref.ref
        Dead when the pass has ended, also where it has failed and `action` was not called.
    """
    call = functools.partial(action)
    Variable._execution_engine.queue_callback(_AtEnd(call).run)
    return weakref.ref(call)


class _AtEnd:
    """Calls `action` at the end of the outermost backward pass.

    A backward pass inside another one, of a checkpoint for example, ends before the outer one.
    Autograd then drops the callback when control is back in the outer pass, which gets a new one.
    """

    def __init__(self, action: Callable[[], None]) -> None:
        self.action = action
        self.is_inside = False

    def run(self) -> None:
        self.is_inside = torch._C._current_autograd_node() is not None
        if not self.is_inside:
            self.action()

    def __del__(self) -> None:
        if self.is_inside:
            Variable._execution_engine.queue_callback(_AtEnd(self.action).run)


def refuse_compiled_autograd() -> None:
    """Raise a ConfigError where compiled autograd would run the next backward pass.

    It traces hooks, in place of calling them when gradients arrive.
    """
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    if compiled is not None and compiled.compiled_autograd_enabled:
        raise _core.ConfigError(
            "compiled autograd is on, allowed: torch._dynamo.config.compiled_autograd = False; "
            "torch.compile(net) before wrapping works without it"
        )


def increment_versions(tensors: list[torch.nn.Parameter]) -> None:
    """Make graphs that still need the old values notice."""
    if not tensors:
        return
    if _VERSION >= (2, 6):
        torch.autograd.graph.increment_version(tensors)
        return
    for tensor in tensors:
        torch._C._increment_version(tensor)
