"""A module's buffers, which are a rank's own, and the mean of all ranks inside global_average()."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["SavedBuffers", "copy_into"]

# The codes of a quantization, as in float8, have no mean that means something.
_AVERAGED = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class SavedBuffers:
    """All buffers that a module has now, with copies of their values.

    Parameters
    ----------
    module
        The module.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._places: list[tuple[dict[str, Any], str, torch.Tensor | None]] = [
            (part._buffers, key, buffer)
            for part in module.modules()
            for key, buffer in part._buffers.items()
        ]
        unique = {id(buffer): buffer for _, _, buffer in self._places if buffer is not None}
        parts = [_written_part(buffer) for buffer in unique.values()]
        self._values = [(part, part.clone()) for part in parts]
        self.averaged = [part for part in parts if part.dtype in _AVERAGED]
        """The buffers that have a mean, without the elements that expand() has repeated."""

    @torch.no_grad()
    def restore(self) -> None:
        """Give the module its buffers back, also where forward() has put others in their place."""
        for buffers, key, buffer in self._places:
            buffers[key] = buffer
        for part, values in self._values:
            part.copy_(values)


def copy_into(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Copy values into a tensor, and into one that expand() has made once into each place."""
    part = _written_part(tensor)
    part.copy_(values[tuple(slice(0, size) for size in part.shape)])


def _written_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor without repetitions: one element where expand() shows many."""
    repeated = [d for d, step in enumerate(tensor.stride()) if step == 0 and tensor.shape[d] > 1]
    for d in repeated:
        tensor = tensor.narrow(d, 0, 1)
    return tensor
