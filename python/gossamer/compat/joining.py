"""``join()`` of the drop-in: ranks with different numbers of batches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from .. import _core
from ..checks import share_object, share_tensors

if TYPE_CHECKING:
    from .trainer import Trainer

_BUFFERS = "buffers"
_SAYS = "says "
_CALLS = "calls "


class Joining:
    """What ranks tell each other inside of join(), before all that they do together.

    All ranks tell at the same time, each one of these:

    1. "buffers": this rank begins a forward pass, and all ranks get the buffers of the last rank
       that has a batch, as in PyTorch.
    2. A number: this rank begins a step. The number is the weight of its batch.
    3. "says TEXT": the ranks with a batch need each other's texts, and nothing of the others.
    4. "calls NAME": this rank makes a collective call. It is refused where a rank has no batch.
    5. Nothing: this rank has no batch left. It does what the others do, without a batch. The ranks
       go on together when no rank tells anything else.

    Parameters
    ----------
    trainer
        What exchanges below the drop-in.
    buffers
        The buffers that the ranks share; none: they share none.
    divides_by_all
        Whether gradients are divided by the number of all ranks, and not of those with a batch.
    throws
        Whether the first rank without a batch ends the training of all.
    """

    def __init__(
        self,
        trainer: Trainer,
        buffers: list[torch.Tensor],
        *,
        divides_by_all: bool = True,
        throws: bool = False,
    ) -> None:
        self._trainer = trainer
        self._session = trainer.session
        self._buffers = buffers
        self.divides_by_all = divides_by_all
        self._throws = throws
        self.present: list[int] = []
        """The ranks that had a batch when the ranks told last; none: there was nothing to do."""
        trainer.begin_join(self)

    def _tell(self, what: str) -> list[str]:
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
        found = [everyone[rank] for rank in present]
        if found and found[0].startswith(_CALLS) and len(present) < len(everyone):
            absent = [rank for rank in range(len(everyone)) if rank not in present]
            raise _core.ConfigError(
                f"ranks {absent} have no batch left, and the others call "
                f"{found[0].removeprefix(_CALLS)} between two steps, where these ranks are not, "
                "allowed: such a call when all ranks have used their batches, as after the epoch"
            )
        return found

    # What ranks with a batch do.

    def share_buffers(self) -> None:
        """Begin a forward pass. Collective."""
        self._tell(_BUFFERS)
        share_tensors(self._session, self._buffers, self.present[-1])

    def weights(self, weight: float) -> list[float]:
        """Return the weights of all batches of the step that begins. Collective."""
        return [float(text) for text in self._tell(repr(weight))]

    def texts(self, own: str) -> list[str]:
        """Return a text of each rank that has a batch. Collective."""
        return [text.removeprefix(_SAYS) for text in self._tell(_SAYS + own)]

    def refuse_absent(self, name: str) -> None:
        """Refuse a collective call where a rank has no batch. Collective.

        Raises
        ------
        ConfigError
            On all ranks.
        """
        self._tell(_CALLS + name)

    # What a rank without a batch does.

    def wait_for_others(self, after_step: Callable[[], object] = lambda: None) -> None:
        """Make the steps of the others until no rank has a batch. Collective.

        Parameters
        ----------
        after_step
            Called after every such step.
        """
        self._trainer.counts_batches(False)
        while told := self._tell(""):
            if told[0] == _BUFFERS:
                share_tensors(self._session, self._buffers, self.present[-1])
            elif not told[0].startswith((_SAYS, _CALLS)):
                self._trainer.step_without_batch()
                after_step()
        if self.present:
            self._trainer.take_end(self, self._buffers)
        self.present = []
        self._trainer.counts_batches(True)

    def end(self) -> None:
        """Tell the others nothing more."""
        self._trainer.end_join()

    @property
    def is_uneven(self) -> bool:
        """Whether a rank had no batch when the last step was made."""
        return 0 < len(self.present) < self._session.world_size

    def share_optimizers(
        self, own: list[tuple[list[int], torch.optim.Optimizer]]
    ) -> list[tuple[list[int], dict[str, Any]]]:
        """Return the states that optimizers have on the last rank that had a batch. Collective.

        Parameters
        ----------
        own
            The optimizers of this rank, with the numbers of their parameters.
        """
        found = share_object(
            self._session,
            lambda: [(indices, optimizer.state_dict()) for indices, optimizer in own],
            self.present[-1],
        )
        return [] if self._session.rank in self.present else list(found)


@contextlib.contextmanager
def joined(make: Callable[[], Joining]) -> Iterator[None]:
    """Be the scope of join(). Collective."""
    joining = make()
    try:
        yield
        joining.wait_for_others()
    finally:
        joining.end()


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
