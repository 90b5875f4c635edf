"""What a wrapped module does when ranks of its run are lost, and when others join."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from . import _core
from .checks import describe_options, share_object, share_tensors
from .fixed_ranks import FixedRanks
from .own_topologies import world_of

if TYPE_CHECKING:
    from .data_parallel import DecentralizedDataParallel

__all__ = ["MembershipChange", "Survival"]

Result = TypeVar("Result")

_logger = logging.getLogger(__name__)


class MembershipChange(NamedTuple):
    """A change of the members of a run, as Session.on_change() tells it."""

    step: int
    """The last step before the change."""
    lost: list[int]
    """The numbers of the members that the run has lost."""
    joined: list[int]
    """The numbers of the members that have joined."""
    members: list[int]
    """The number of each member, by rank."""
    recovery_s: float
    """Seconds from the end of this rank's last step until the ranks went on."""
    reason: str
    """Why the members changed."""


class Survival(FixedRanks):
    """Takes a wrapped module from one world of its run into the next one.

    A change of the members follows these rules. In the example rank 2 of three ranks dies:

    1. The exchanges of step 7 fail on ranks 0 and 1. The step goes on without them.
    2. After the step both ranks agree on a world of two, and tell each other how many steps they
       have made. Rank 0 has made 8 steps, and rank 1 has made 7.
    3. Rank 1 returns from backward(), and makes step 8 alone in the user's loop. Rank 0 waits.
    4. After step 8 of rank 1 both ranks resume. Their parameters, and the states of the engine's
       optimizer, become their mean, and they exchange from step 9 on.

    A rank that joins goes through these states:

    ======= ================================= ====================================================
    state   begins                            what the rank does
    ======= ================================= ====================================================
    joins   in Session.join()                 It has no model, and the others wait for it.
    silent  in rule 4, without a weight in    Its own loop waits in enter(), while it does what
            the mean                          the others announce: their steps, in which it has
                                              no batch, and their calls, such as an evaluation.
    fresh   when the others begin the step    Its own loop goes on, with rank 0's numbers of the
            of its first batch                optimizer and the schedule, and the states that the
                                              user has registered. What its loop does before this
                                              step, the others have done, so it does nothing.
    active  after this step                   It is as all others are.
    ======= ================================= ====================================================

    Where a node is lost and joins as a whole, its ranks also meet in collectives of PyTorch, which
    wait for all of them. So they tell one another of a loss at the end of each collective work of
    these rules (attempt()): all of them go on from there, or none.

    ElasticSampler deals the first batch. Its loaders have fetched ahead, so there may be some steps
    before that. Under other samplers it belongs to the others' next step.

    Parameters
    ----------
    model
        The wrapper, which owns this object.
    joins
        Whether this rank has just joined a run, and has no model yet.
    """

    def __init__(self, model: DecentralizedDataParallel, *, joins: bool) -> None:
        self._model = model
        self._session = model.session
        self._has_entered = False
        self._joins = joins
        """This rank has not got the model yet."""
        self._wakes_at: int | None = None
        """A silent rank is fresh when the ranks have made so many steps; None: it is not silent."""
        self._gives_at: set[int] = set()
        """After how many steps rank 0 gives its numbers to silent ranks; empty: none is silent."""
        self._is_fresh = joins
        """This rank has joined, and has made no step with its own loop since then."""
        self._has_heard = False
        """The others have announced the next step, which ends this rank's silence."""
        self._num_calls = 0
        """The calls that the ranks have made together since their last step, or change."""
        self._is_in_step = False
        """This rank is in after_step(), and its loop has not gone on from the step."""
        self._furthest_place = (0, False, 0)
        """The furthest _position() of a rank when the ranks last went on in another world."""
        self._is_behind = False
        """Others had left this step when ranks were lost, and this rank makes no call with them."""
        self._step_of_all: int | None = None
        """The steps that this rank has to make alone before it resumes; None: it has resumed."""
        self._told_members: list[int] = []
        self._reason = ""
        self._last_step = time.monotonic()
        self._has_ended = False
        self._leave_to_user()

    @property
    def has_newcomers(self) -> bool:
        """Whether a rank joins and has not begun its first step, or this rank lags behind."""
        is_alone = self._step_of_all is not None or self._is_behind
        return bool(self._gives_at) or self._is_fresh or is_alone

    @property
    def _is_silent(self) -> bool:
        return self._joins or self._wakes_at is not None

    # The protocol.

    def enter(self) -> None:
        """Begin, or join the others. Collective on its first call; does nothing after that."""
        if self._has_entered:
            return
        self._has_entered = True
        self._session.refuse_calls(False)
        try:
            self.attempt(self._meet)
            self._tell()
        except _core.PeerLost as lost:
            self._recover(str(lost))
        self._serve()
        self._leave_to_user()

    def check_entered(self) -> None:
        """Refuse a backward pass whose forward pass has not given this rank the others' model."""
        if self._has_entered:
            return
        raise _core.ConfigError(
            "backward() before this rank has the model of the others, which it gets with "
            "survive=True in the first forward pass, allowed: a loss of model(x), with the wrapper "
            "in training mode, where model.module may be in eval(); torch.compile(net) before "
            "wrapping"
        )

    def begin_call(self, call: str) -> None:
        """Begin, before a collective call that ranks do not make with one that has just joined."""
        self.enter()
        if self.has_newcomers:
            raise _core.PeerLost(f"{call} while a rank joins, allowed: after the next step")

    @property
    def is_fresh(self) -> bool:
        """Whether this rank has joined, and has made no step with its own loop since then."""
        return self._is_fresh

    def begin_step(self) -> None:
        """Let processes in that ask to join."""
        self.enter()
        self._begin()
        if self._step_of_all is not None:
            self._go_on()
        if not self._is_silent and not self._has_heard:
            self._announce("step")
        self._has_heard = False
        if self._step_of_all is None:
            self._session.admit(True)

    def after_step(self) -> None:
        """Go on with the ranks that are left. The step may still be uncommitted."""
        self._num_calls = 0
        self._is_in_step = True
        self._is_fresh = self._is_fresh and self._is_silent
        if self._step_of_all is not None:
            self._go_on()
        else:
            self._session.admit(False)
            try:
                self.attempt(self._session.check)
            except _core.PeerLost as lost:
                self._recover(str(lost))
        self._is_behind = self._furthest_place > self._position()
        self._is_in_step = False
        self._last_step = time.monotonic()
        self._leave_to_user()

    def together(
        self,
        call: Mapping[str, Any] | str,
        work: Callable[[], Result],
        undo: Callable[[], None] = lambda: None,
    ) -> Result | None:
        """Return what collective work returns, which begins anew where ranks are lost meanwhile.

        No rank goes on before all ranks have done the work. In the example rank 2 of three ranks
        dies:

        1. Rank 1 has done the work, and its barrier fails.
        2. Rank 0 has passed the barrier and made a step, or another call: then rank 1 goes on, too.
        3. Or no rank has passed the barrier: then both ranks do the work again.

        Parameters
        ----------
        call
            What a silent rank needs to know to take part; "end": it does not, and its own loop
            goes on to the same work.
        work
            What all ranks do between two steps.
        undo
            Called before the work begins anew.

        Returns
        -------
        object
            What the work has returned. None: this rank has joined and made no step since, so the
            others have done this work before.
        """
        self.enter()
        if self._is_fresh and call != "end":
            return None
        self._begin()
        while True:
            if self._step_of_all is not None:
                self._go_on()
            results: list[Result] = []

            def do(results: list[Result] = results) -> None:
                self._announce(call)
                self._check_not_behind()
                results.append(work())
                self._session.barrier()

            try:
                self.attempt(do)
                break
            except _core.PeerLost as lost:
                reason = str(lost)
            own = self._position()
            if self._regroup(reason) > own and results:
                # This rank resumes before its next step or call.
                break
            undo()
        self._num_calls += 1
        self._leave_to_user()
        return results[0]

    def _check_not_behind(self) -> None:
        if self._step_of_all is not None:
            raise _core.CommError(
                f"ranks were lost, and others have made {self._step_of_all} steps where this rank "
                f"has made {self._steps()} and does something else: all ranks must do the same "
                "between two steps"
            )

    def end(self, work: Callable[[], None]) -> None:
        """Wait until all ranks have trained to the end. Where others leave meanwhile, they have."""
        if self._has_ended or not self._has_entered:
            return
        self._has_ended = True
        try:
            self._session.admit(False)
            self.together("end", work)
        except _core.CommError as error:
            _logger.info("ends without the others: %s", error)
        self._is_fresh = False
        self._leave_to_user()

    def attempt(self, work: Callable[[], Result]) -> Result:
        """Return what collective work returns, unless a rank of this node loses others meanwhile.

        Raises
        ------
        PeerLost
            On all ranks of the node.
        """
        try:
            result = work()
        except _core.PeerLost as lost:
            self._model.share_loss(lost)
            raise
        self._model.share_loss(None)
        return result

    def _meet(self) -> None:
        """Go on in the world in which this rank has begun."""
        if self._joins:
            # The others tell these numbers after every change of the members.
            self._furthest()
        self._resume()

    def _begin(self) -> None:
        """Begin what all ranks do together."""
        self._is_behind = False
        self._session.refuse_calls(False)

    def _leave_to_user(self) -> None:
        """Have the user's own collective calls fail where other ranks would miss them."""
        self._session.refuse_calls(self.has_newcomers)

    # Silent ranks.

    def _announce(self, call: Mapping[str, Any] | str) -> None:
        """Tell silent ranks what the others do now: "step", "end", or a call."""

        def tell() -> None:
            self._session.all_gather(json.dumps(call))
            if self._gives(call):
                share_object(self._session, self._model._numbers)

        while self._gives_at:
            try:
                self.attempt(tell)
                self._note_given(call)
                return
            except _core.PeerLost as lost:
                self._recover(str(lost))
                if self._step_of_all is not None:
                    return

    def _gives(self, call: Mapping[str, Any] | str) -> bool:
        """Return whether rank 0 gives its numbers to silent ranks with this call."""
        return call == "end" or (call == "step" and self._steps() in self._gives_at)

    def _note_given(self, call: Mapping[str, Any] | str) -> None:
        steps = self._steps()
        if isinstance(call, str):
            self._gives_at = {at for at in self._gives_at if at > steps and call != "end"}

    def _serve(self) -> None:
        """Do what the others do, until they begin the step of this rank's first batch."""
        while self._is_silent:
            self._session.refuse_calls(False)
            if self._step_of_all is not None:
                self._model.finish_step()
                continue
            try:
                call, numbers = self.attempt(self._hear)
            except _core.PeerLost as lost:
                self._recover(str(lost))
                continue
            if not isinstance(call, str):
                self._num_calls += 1
                continue
            if numbers is not None:
                self._model._take_numbers(numbers)
            self._note_given(call)
            assert self._wakes_at is not None
            if call == "end" or self._steps() >= self._wakes_at:
                self._has_heard = call == "step"
                self._wake_up()
            elif call == "step":
                self._model.finish_step()

    def _hear(self) -> tuple[Mapping[str, Any] | str, dict[str, Any] | None]:
        """Return what the others announce, which this rank has done, and rank 0's numbers."""
        texts = self._session.all_gather("null")
        call: Any = next(call for call in map(json.loads, texts) if call is not None)
        if not isinstance(call, str):
            self._model._serve(call)
            self._session.barrier()
        numbers = None
        if self._gives(call):
            numbers = share_object(self._session, self._model._numbers)
        return call, numbers

    def _wake_up(self) -> None:
        self._wakes_at = None
        if self._model._sampler is not None:
            self._model._sampler.begin_here()

    # The rules.

    def _steps(self) -> int:
        return self._model._engine.num_steps()

    def _position(self) -> tuple[int, bool, int]:
        return (self._steps(), not self._is_in_step, self._num_calls)

    def _furthest(self) -> tuple[int, bool, int]:
        """Return the furthest position of a rank of this world. Collective."""
        # A lost rank may have come further. No rank makes up for that.
        own = (-1, False, 0) if self._joins else self._position()
        return max(tuple(json.loads(text)) for text in self._session.all_gather(json.dumps(own)))

    def _recover(self, reason: str) -> None:
        self._regroup(reason)
        self._go_on()

    def _regroup(self, reason: str) -> tuple[int, bool, int]:
        """Agree with the ranks that are left on a new world. Returns the furthest position."""
        self._reason = reason
        # As far as anybody knows, until the ranks resume.
        self._gives_at = set()

        def agree() -> tuple[int, bool, int]:
            self._session.reconfigure(self._steps())
            return self._furthest()

        while True:
            try:
                self._model._engine.detach()
                furthest = self.attempt(agree)
                break
            except _core.PeerLost as another:
                self._reason = str(another)
        self._step_of_all, self._furthest_place = furthest[0], furthest
        return furthest

    def _go_on(self) -> None:
        """Resume, if this rank has made as many steps as the others."""
        assert self._step_of_all is not None
        if not self._joins and self._steps() < self._step_of_all:
            self._model._engine.catch_up(self._step_of_all)
            if self._steps() < self._step_of_all:
                return
        try:
            self.attempt(self._resume)
        except _core.PeerLost as lost:
            return self._recover(str(lost))
        self._step_of_all = None
        seconds = time.monotonic() - self._last_step
        self._session.add_recovery(seconds)
        self._tell(seconds)

    def _resume(self) -> None:
        """Go on in the present world. Collective of all its members."""
        model, session = self._model, self._session
        steps = self._steps()
        everyone = [json.loads(text) for text in session.all_gather(json.dumps(self._words(steps)))]
        if everyone[0]["joins"]:
            raise _core.CommError(
                "no rank of the run is left that has the model; begin it again from what was saved"
            )
        trained = [one for one in everyone if not one["joins"]]
        if model._sampler is not None:
            # Before what may still fail: no rank trains in this world before all know its places.
            model._sampler.change([one["place"] for one in trained])
        text, lines = describe_options(model._options, world_of(session))
        # A rank that joins with something else ends, and the others go on without it.
        has_new = any(one["joins"] for one in everyone)
        agree = session.agree_with_first if has_new else session.agree
        agree("their models", model.description())
        agree("their optimizers", model._optimizer.description)
        agree("their options", lines)
        if not session.all_vote:
            # The ranks that have joined fit, and vote in the next world. A rank that loses another
            # one meanwhile meets them there.
            raise _core.PeerLost(self._reason)
        others = [*model._untrained(), *model.module.buffers()]
        is_beginning = all(one["steps"] == 0 for one in everyone)
        if is_beginning:
            # A rank that has trained nothing takes rank 0's values, as under other sessions.
            share_tensors(session, [*model._trained.memory, *others])
        elif has_new:
            share_tensors(session, others if self._joins else [t.clone() for t in others])
        model._resume(text, joins=self._joins)
        self._num_calls = 0
        self._note_silent(everyone)

    def _note_silent(self, everyone: list[dict[str, Any]]) -> None:
        """Know which ranks are silent, and until when. All ranks of a world find the same."""
        trained = [one for one in everyone if not one["joins"]]
        steps = trained[0]["steps"]
        wakes_at = {max(steps, one["wakes_at"]) for one in trained if one["wakes_at"] is not None}
        if len(trained) < len(everyone):
            first_batch_at = steps + max(one["steps_ahead"] for one in trained)
            wakes_at.add(first_batch_at)
            if self._joins:
                self._wakes_at = first_batch_at
        elif all(one["wakes_at"] is not None for one in trained):
            # The ranks that would announce something are lost.
            wakes_at.clear()
            self._wake_up()
        self._joins = False
        # Ranks without numbers may be left alone before their first batch.
        self._gives_at = {steps, *wakes_at} if wakes_at else set()

    def _words(self, steps: int) -> dict[str, Any]:
        place: list[int] | None = None
        steps_ahead = 0
        # A rank that joins has no place in the data yet.
        if self._model._sampler is not None and not self._joins:
            sampler = self._model._sampler
            own = [*sampler.place(), sampler.num_steps_ahead()]
            *place, steps_ahead = self._model.furthest_of_node(own)
        return {
            "place": place,
            "steps_ahead": steps_ahead,
            "joins": self._joins,
            "wakes_at": self._wakes_at,
            "steps": steps,
        }

    def _tell(self, seconds: float = 0.0) -> None:
        before, self._told_members = self._told_members, list(self._session.whole.members)
        after = self._told_members
        # A rank that has joined may be gone before it was told.
        if not before or before == after:
            return
        change = MembershipChange(
            step=self._steps(),
            lost=[m for m in before if m not in after],
            joined=[m for m in after if m not in before],
            members=list(after),
            recovery_s=seconds,
            reason=self._reason,
        )
        whole = self._session.whole
        if whole.rank == 0:
            num = whole.world_size
            ranks = "1 rank goes" if num == 1 else f"{num} ranks go"
            _logger.warning(
                "after step %d: %s; %s on, %.3f s later", change.step, change.reason, ranks, seconds
            )
        for callback in self._session.listeners:
            callback(change)
