"""What peers have sent, for optimizers that ask for it before it is mixed in."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from .topo import Edge, Topology

__all__ = ["PeerSums"]


class _Sent(NamedTuple):
    value: torch.Tensor
    """The parameter when its exchange began."""
    factor: float
    """The adaptive factor of this exchange."""


class PeerSums:
    """Calls an optimizer's ``pre_average_hook(edge, weight)``, as decent-dp does.

    The engine mixes before it calls an optimizer that runs in Python. So this object keeps every
    parameter as it was sent, and takes from it and from the mix what the peers' sum has been: ``p``
    and ``p.comm_buffer`` are those of decent-dp when the hook is called. What the hook writes to
    them goes into the mix. It costs one more copy of the parameters and one for the sums. A step
    that a scaler leaves out calls no hook.

    Parameters
    ----------
    optimizer
        The optimizer; its groups hold the parameters of one bucket when the hook is called.
    topology
        Names the edge of every exchange.
    """

    def __init__(self, optimizer: Any, topology: Topology) -> None:
        self._optimizer = optimizer
        self._topology = topology
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._sent: dict[torch.nn.Parameter, _Sent] = {}
        self._num_steps = 0
        self.factor = 1.0
        """The adaptive factor of the exchanges that start from now on; above 0."""
        for p in self._parameters:
            p.comm_buffer = p.detach().clone()

    def before_update(self, parameters: list[torch.nn.Parameter]) -> None:
        """Call the hook for the parameters of a bucket, which are mixed already."""
        edge = self._edge()
        if self._num_steps == 0:
            for p in parameters:
                p.comm_buffer.copy_(p)  # type: ignore[attr-defined]
            self._optimizer.pre_average_hook(edge, edge.weight)
            return
        if any(p not in self._sent for p in parameters):
            return
        share = (1 - edge.weight) / max(len(edge.ranks) - 1, 1)
        mixed = {}
        for p in parameters:
            value, factor = self._sent[p]
            keep = 1 - factor + factor * (edge.weight - share)
            own = p.detach().clone()
            total = (own - keep * value) / factor
            mixed[p] = (own, total, keep, factor)
            p.copy_(value)
            p.comm_buffer.copy_(total)  # type: ignore[attr-defined]
        self._optimizer.pre_average_hook(edge, edge.weight)
        for p, (own, total, keep, factor) in mixed.items():
            # Exactly the mix, where the hook has written nothing.
            own += keep * (p - self._sent[p].value)
            own += factor * (p.comm_buffer - total)  # type: ignore[attr-defined]
            p.copy_(own)

    def end_step(self) -> None:
        """Keep the parameters, which no code writes while they are exchanged."""
        self._sent = {p: _Sent(p.detach().clone(), self.factor) for p in self._parameters}
        self._num_steps += 1

    def forget(self) -> None:
        """Mix nothing in the next step, which calls no hook."""
        self._sent.clear()

    def _edge(self) -> Edge:
        # In its second step decent-dp's counter runs ahead by one.
        return self._topology.get_edge(1 if self._num_steps < 2 else self._num_steps + 1)
