"""The ranks of a node that is a member of a run: it is lost, or joins, as a whole."""

from __future__ import annotations

import uuid
from typing import Any

import torch
import torch.distributed as dist

from . import _core

__all__ = ["Mates", "check_node", "name_of_new_node"]


def check_node(session: _core.Session) -> None:
    """Refuse a session that may lose ranks, and does not know of nodes.

    Raises
    ------
    ConfigError
        A rank that is lost would leave the others of its node in their collectives.
    """
    if session.is_elastic and session.place < 0:
        raise _core.ConfigError(
            "survive: is True, and the session does not know which ranks are a node, which is lost "
            "as a whole, allowed: a torchrun job for each node with initialize_dist(nodes=, node=)"
        )


def name_of_new_node() -> str:
    """Return a name that the ranks of this job share, and no other job has. Collective of the job.

    Raises
    ------
    ConfigError
        Where the ranks cannot tell one another.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise _core.ConfigError(
            "initialize_dist: join: the ranks of a node join together, and cannot tell one another "
            "yet, allowed: after torch.distributed.init_process_group()"
        )
    group = dist.new_group(backend="gloo")
    names = [uuid.uuid4().hex[:12]]
    dist.broadcast_object_list(names, src=0, group=group)
    dist.destroy_process_group(group)
    return names[0]


class Mates:
    """What the ranks of this node tell one another between two parts of a step.

    The ranks of a node meet in collectives of PyTorch, which no loss of another node ends. So all
    of them leave their loop for what ranks do after a loss, or none.

    Making this is collective of the node.
    """

    def __init__(self) -> None:
        # Its sums wait for no GPU, and fail where a rank is killed.
        self._group: Any = dist.new_group(backend="gloo")

    def share_loss(self, lost: _core.PeerLost | None) -> None:
        """Raise PeerLost if a rank of the node has lost others. Collective of the node.

        Parameters
        ----------
        lost
            The loss that this rank has found; None: it has found none.
        """
        num = self.sum(float(lost is not None))
        if lost is not None:
            raise lost
        if num > 0:
            raise _core.PeerLost("another rank of this node has lost others")

    def furthest(self, numbers: list[int]) -> list[int]:
        """Return the largest list of the node's ranks, by its first numbers. Collective of it."""
        own = torch.tensor(numbers)
        every = [torch.empty_like(own) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(every, own, group=self._group)
        return max(one.tolist() for one in every)

    def sum(self, number: float) -> float:
        """Return the sum over the node's ranks. Collective of the node."""
        total = torch.tensor([number], dtype=torch.float64)
        dist.all_reduce(total, group=self._group)
        return total.item()
