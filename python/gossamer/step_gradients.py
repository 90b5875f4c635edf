"""The gradients of one step: which have come, which the engine has, and in which layout."""

from __future__ import annotations

import torch

from . import _core
from .devices import current_stream
from .parameters import EngineParameters

__all__ = ["ELSEWHERE", "StepGradients"]

# No stream of CUDA has this handle.
ELSEWHERE = -1


class StepGradients:
    """The gradients of one step, by the places that their parameters have in the engine.

    Parameters
    ----------
    trained
        The parameters.
    how_to_collect
        What a program does about a parameter that gets several gradients in one backward pass.
    """

    def __init__(self, trained: EngineParameters, how_to_collect: str) -> None:
        self._trained = trained
        self._how_to_collect = how_to_collect
        self.on_gpu = trained.device.type == "cuda"
        self.scale: float | None = None
        """By what the engine multiplies gradients first; None: nothing has been said."""
        self.buckets: list[list[int]] = []
        """The places of the parameters in each bucket of the engine."""
        self.num_done = 0
        """How many buckets the engine has updated in this step."""
        self._first_pass: dict[int, int] | None = {}
        """How many gradients each parameter has got in the first pass; None: that is over."""
        self._places: dict[int, int] = {}
        self._comes_late = bytearray()
        self.number()

    def number(self) -> None:
        """Know all parameters by their places in the engine."""
        tensors = self._trained.tensors
        late = {p: self._comes_late[i] for p, i in self._places.items()}
        self._places = {id(p): i for i, p in enumerate(tensors)}
        self.made_on = [0] * len(tensors)
        """The stream of CUDA on which each gradient was made."""
        self.is_offered = bytearray(len(tensors))
        """Whether the engine has each gradient of this step, or must not get it."""
        self._laid_out: list[torch.Tensor] = []
        """Whose gradients of this step have got the layout that the engine wants."""
        self._comes_late = bytearray(late.get(id(p), 0) for p in tensors)

    def due(self, p: torch.Tensor) -> int | None:
        """Return the place of a gradient that the engine gets now; None: not now, or never."""
        i = self._places.get(id(p))
        if i is None:
            return None
        if self._first_pass is not None:
            self._first_pass[i] = self._first_pass.get(i, 0) + 1
            return None
        if self._comes_late[i]:
            return None
        if self.is_offered[i]:
            raise RuntimeError(
                f"parameter {self._trained.names[i]} got a second gradient in one backward pass, "
                "and one in the first step, as happens when two checkpointed parts use it; "
                f"{self._how_to_collect}"
            )
        return i

    def end_first_pass(self) -> list[int]:
        """Return the places in the order of the first pass, late ones last; later: none."""
        if self._first_pass is None:
            return []
        found, self._first_pass = self._first_pass, None
        for i, num in found.items():
            self._comes_late[i] = num > 1
        return sorted(found, key=lambda i: self._comes_late[i])

    def offer(self, i: int, p: torch.Tensor) -> torch.Tensor:
        """Return a gradient in the engine's layout, which the engine gets now."""
        grad = self._trained.gradient(i)
        assert grad is not None
        fits = grad.layout is torch.strided and grad.dtype == p.dtype
        if not fits or grad.stride() != self._trained.strides[i]:
            grad = self._in_layout(i, p, grad)
        self.is_offered[i] = 1
        return grad

    def _in_layout(self, i: int, p: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        if grad.layout != torch.strided:
            raise _core.ConfigError(
                f"parameter {self._trained.names[i]} has a sparse gradient, allowed: dense "
                "gradients"
            )
        # The parameter itself has another layout where the user has moved it, as under allreduce.
        self._laid_out.append(p)
        strides = self._trained.strides[i]
        p.grad = torch.empty_strided(p.shape, strides, dtype=p.dtype, device=p.device).copy_(grad)
        return p.grad

    def take_done(self, num_done: int) -> list[torch.nn.Parameter]:
        """Return the parameters that the engine has updated now; `num_done`: buckets so far."""
        changed = [i for bucket in self.buckets[self.num_done : num_done] for i in bucket]
        self.num_done = num_done
        if self.on_gpu:
            self._keep(changed)
        return [self._trained.tensors[i] for i in changed]

    def _keep(self, changed: list[int]) -> None:
        """Keep the memory of gradients of other streams until the engine has read them."""
        stream = current_stream(self._trained.device)
        for i in changed:
            grad = self._trained.gradient(i)
            if grad is not None and self.made_on[i] != stream:
                grad.record_stream(torch.cuda.current_stream(self._trained.device))

    def end_step(self) -> None:
        """Begin anew, and give gradients their parameters' layout, on which optimizers rely."""
        self.num_done = 0
        self.is_offered = bytearray(len(self._trained.tensors))
        for p in self._laid_out:
            if p.grad is not None and p.grad.stride() != p.stride():
                p.grad = torch.empty_like(p).copy_(p.grad)
        self._laid_out.clear()
