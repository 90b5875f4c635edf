"""``join()`` of the drop-in: ranks with different numbers of batches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from .. import _core
from ..checks import share_object, share_tensors

if TYPE_CHECKING:
    from ..distributed import Session
    from .trainer import Trainer

_BUFFERS = "buffers"


class Joining:
    """What ranks tell each other inside of join(), before all that they do together.

    All ranks tell at the same time, each one of these:

    1. "buffers": this rank begins a forward pass, and all ranks get the buffers of the last rank
       that has a batch, as in PyTorch.
    2. A number: this rank begins a step. The number is the weight of its batch.
    3. Nothing: this rank has no batch left. It does what the others do, without a batch. The scope
       ends when no rank tells anything else.

    Parameters
    ----------
    session
        The session of the ranks.
    divides_by_all
        Whether gradients are divided by the number of all ranks, and not of those with a batch.
    throws
        Whether the first rank without a batch ends the training of all.
    """

    def __init__(self, session: Session, *, divides_by_all: bool, throws: bool) -> None:
        self._session = session
        self.divides_by_all = divides_by_all
        self._throws = throws
        self.present: list[int] = []
        """The ranks that had a batch when the ranks told last; none: there was nothing to do."""

    def tell(self, what: str) -> list[str]:
        """Return what the ranks with a batch do now; empty: no rank has one. Collective."""
        everyone = self._session.all_gather(what)
        present = [rank for rank, text in enumerate(everyone) if text]
        if self._throws and 0 < len(present) < len(everyone):
            raise RuntimeError(
                "this rank has used all of its batches, and others have not"
                if not what
                else f"{len(everyone) - len(present)} ranks have used all of their batches"
            )
        self.present = present or self.present
        return [everyone[rank] for rank in present]

    def share_buffers(self, buffers: Iterable[torch.Tensor]) -> None:
        """Begin a forward pass on a rank that has a batch. Collective."""
        self.tell(_BUFFERS)
        share_tensors(self._session, buffers, self.present[-1])

    def weights(self, weight: float) -> list[float]:
        """Return the weights of all batches of the step that begins. Collective."""
        return [float(text) for text in self.tell(repr(weight))]

    @property
    def is_uneven(self) -> bool:
        """Whether a rank had no batch when the last step was made."""
        return 0 < len(self.present) < self._session.world_size


@contextlib.contextmanager
def joined(
    trainer: Trainer, buffers: list[torch.Tensor], *, divides_by_all: bool, throws: bool
) -> Iterator[None]:
    """Be the scope of join(). Collective."""
    session = trainer.session
    joining = Joining(session, divides_by_all=divides_by_all, throws=throws)
    trainer.begin_join(joining)
    try:
        yield
        trainer.listen()
        while told := joining.tell(""):
            if told[0] == _BUFFERS:
                share_tensors(session, buffers, joining.present[-1])
            else:
                trainer.step_without_batch()
        if joining.present:
            trainer.take_end(joining, buffers)
    finally:
        trainer.end_join()


def share_optimizers(
    joining: Joining, session: Session, own: list[tuple[list[int], torch.optim.Optimizer]]
) -> list[tuple[list[int], dict[str, Any]]]:
    """Return the states that optimizers have on the last rank that had a batch. Collective.

    Parameters
    ----------
    joining
        Who had the last batch.
    session
        The session of the ranks.
    own
        The optimizers of this rank, with the numbers of their parameters.
    """
    root = joining.present[-1]
    found = share_object(
        session, lambda: [(indices, optimizer.state_dict()) for indices, optimizer in own], root
    )
    return [] if session.rank in joining.present else list(found)


def refuse_scaler() -> None:
    """Refuse a GradScaler inside of join().

    Raises
    ------
    ConfigError
        Always.
    """
    raise _core.ConfigError(
        "join() with a torch.amp.GradScaler: the scale of a rank without a batch stays behind, and "
        "gradients of different scales would make one mean afterwards, allowed: bfloat16, which "
        "needs no scaler"
    )
