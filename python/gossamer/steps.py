"""The steps that the backward passes of a wrapped module make."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from . import _core
from .autograd import at_end_of_backward, increment_versions
from .batch_weights import BatchWeights
from .call_guard import CallGuard
from .changed_module import ModuleWatch, StatePiece, some, with_new_parameters
from .checks import check_parameters, describe_options, share_options, share_tensors
from .devices import current_stream, engine_gpu
from .distributed import owners_of
from .fixed_ranks import FixedRanks
from .groups import WrappedOptimizer
from .hooks import BackwardPasses, GradientHook, refuse_wrapped
from .optimizer_state import keep_float32
from .own_topologies import world_of
from .parameters import EngineParameters
from .step_gradients import ELSEWHERE, StepGradients
from .step_sums import StepSums

if TYPE_CHECKING:
    from torch.amp.grad_scaler import GradScaler

    from .distributed import Session
    from .scaling import LossScale

__all__ = ["EngineSteps"]


class EngineSteps(torch.nn.Module):
    """A module whose backward passes give gradients to an engine, which updates the parameters.

    The first gradient of a backward pass begins a step, and the end of the pass ends the step. The
    first pass only notes the order of the gradients. The engine cuts its buckets by this order, and
    parameters then move into its memory. A parameter that gets several gradients in the first pass,
    as one of a layer in two checkpoints does, is given to the engine at the end of every pass.

    Parameters
    ----------
    session
        The session in which the engine exchanges.
    module
        The module, which has rank 0's parameters and buffers.
    trained
        The module's parameters.
    optimizer
        The optimizer of these parameters.
    options
        The engine's options.
    scaler
        As in DecentralizedDataParallel.
    """

    # Whether a backward pass changes the model, and not only gradients.
    _updates_in_backward = True
    # What a program does about a parameter that gets several gradients in one backward pass.
    _how_to_collect = "call set_accumulate_grad(True) before backward() and finish_step() after it"

    def __init__(
        self,
        session: Session,
        module: torch.nn.Module,
        trained: EngineParameters,
        optimizer: WrappedOptimizer,
        options: Mapping[str, Any],
        scaler: GradScaler | None,
    ) -> None:
        super().__init__()
        self._session = session
        self.module = module
        self._trained = trained
        self._optimizer = optimizer
        self._loss_scale = _loss_scale(scaler, optimizer.optimizer)
        if scaler is not None:
            optimizer.take_scaler()
        self._options = dict(options)
        self._survival = FixedRanks()
        """What this rank does when others are lost or join."""
        self._engine = self._new_engine()
        self._watch = ModuleWatch(module, optimizer)
        if optimizer.state is not None:
            optimizer.state.set_engine(_engine_of(self))
        self._guard = CallGuard()
        self._gradients = StepGradients(trained, self._how_to_collect)
        self._batches = BatchWeights(session)
        self._passes = BackwardPasses()
        self._step_sums = StepSums()
        self.lr_scheduler: Any = None
        self.step_callbacks: list[Callable[[], None]] = []
        """Called after every step, before the schedule steps."""
        self._handles: list[Any] = []
        refuse_wrapped(trained.with_names())
        self._watch_gradients(trained.tensors)

    def _new_engine(self) -> _core.Engine:
        optimizer = self._optimizer
        return _core.Engine(
            self._session,
            self._trained.described(),
            engine_gpu(self._trained.device),
            self._options_text(),
            _rule_of(self) if optimizer.rule is None else optimizer.rule,
            self._island_sessions(),
        )

    def _island_sessions(self) -> tuple[Session, Session] | None:
        """Return the sessions of a node and of all, where parameters are shards."""
        return None

    def _options_text(self) -> str:
        options = _with_rule(self._options, self._optimizer)
        if not self._session.is_elastic:
            return share_options(self._session, options)
        # The ranks compare them when they meet (Survival).
        return describe_options(options, world_of(self._session))[0]

    def _watch_gradients(self, new: list[torch.nn.Parameter]) -> None:
        """Have the gradients of new parameters tell of themselves."""
        first = self._trained.tensors[0]
        self._handles += [
            p.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                GradientHook(self, is_first=p is first)
            )
            for p in new
        ]

    # Parameters that the module has got since it was wrapped.

    def _take_in_changes(self) -> None:
        """Train from now on what the module has got, or has begun to train. Collective then."""
        if not self._watch.has_changed():
            return
        self._trained.check_places()
        found = self._trained.new()
        new = [(name, p) for name, p in found if self._optimizer.has(p)]
        if len(new) < len(found):
            lacking = [name for name, p in found if not self._optimizer.has(p)]
            self._watch.warn_of_untrained(lacking)
        if new:
            check_parameters(new, self._trained.device)
            self._renew_engine(new)
        self._optimizer.check_parameters()
        self._watch.note()

    def _renew_engine(self, new: list[tuple[str, torch.nn.Parameter]]) -> None:
        old, old_names = self._engine, self._trained.names
        names = [name for name, _ in new]
        # Without a word to the others, which may wait for this rank's messages, and not here.
        if old.is_asynchronous:
            raise _core.ConfigError(
                f"parameters that are trained only now ({some(names)}), and ranks that make "
                "different numbers of steps, allowed: to call finish(), and to wrap the module "
                "again"
            )
        if self._session.is_elastic:
            raise _core.ConfigError(
                f"parameters that are trained only now ({some(names)}), and survive=True, allowed: "
                "to call finish(), and to wrap the module again; or to train them from the "
                "beginning, with a learning rate of 0 at first"
            )
        self._session.agree("the parameters that they begin to train", "\n".join(names))
        share_tensors(self._session, [p for _, p in new])
        has_started = old.has_started
        state: list[StatePiece] = []
        if has_started:
            if self._optimizer.state is not None:
                self._optimizer.state.before_step(old)
            added = {name: p.detach() for name, p in new}
            own = {id(p): name for name, p in self.module.named_parameters()}
            kept = [own[id(p)] for p in self._trained.tensors if id(p) in own]
            all_names = [n for n, _ in self.module.named_parameters() if n in added or n in kept]
            state = with_new_parameters(old.state([]), old_names, all_names, added)
        counts = ("steps", "skipped_steps")
        self._step_sums.add({key: v for key, v in old.metrics().items() if key not in counts})
        old.finish()
        old.close()
        self._trained.take_in(new)
        self._gradients.number()
        self._watch_gradients([p for _, p in new])
        self._engine = self._new_engine()
        if has_started:
            given = [(n, k, shape, torch.tensor(v, dtype=torch.uint8)) for n, k, shape, v in state]
            self._engine.load_state([(n, k, s, v.data_ptr()) for n, k, s, v in given], [])
            self._rebind()
        self._optimizer.renew(self._engine)
        self._trained.note_versions()
        self._engine_is_new()
        self._engine.before_step()

    def _engine_is_new(self) -> None:
        """Tell a new engine what the old one was told beside its options."""
        if self._gradients.scale is not None:
            self._engine.set_gradient_scale(self._gradients.scale)

    # The steps of a backward pass.

    def _begin_backward(self) -> None:
        self._check("backward()")
        self._survival.check_entered()
        self._passes.has_begun = True
        self._step_sums.begin_backward()
        if not self._passes.accumulate:
            self._begin_step()
        end = at_end_of_backward(self._end_backward)
        self._passes.begin(end, owners_of(self._session), self)

    def _end_backward(self) -> None:
        self._passes.has_begun = False
        if self._passes.accumulate:
            self._step_sums.add_backward()
            return
        if self._updates_in_backward:
            self._passes.count()
        order = self._gradients.end_first_pass()
        if not self._engine.has_started:
            for i in order:
                self._arrived(i)
        self._end_step()

    @property
    def _averages_gradients(self) -> bool:
        """Whether a step uses the mean of all ranks' gradients."""
        return self._options["algorithm"] in ("allreduce", {"name": "allreduce"})

    @property
    def _follows_recipe(self) -> bool:
        """Whether rate and norm were chosen for all-reduce, also in the options of a plan."""
        own, train = self._options.get("recipe"), self._options.get("train", {})
        return "allreduce" in (own, train.get("recipe"))

    def _count_batches(self, *, has_one: bool) -> int:
        """Return how many ranks have a batch for the next step. Collective."""
        return self._batches.count(has_one=has_one, in_mean=self._averages_gradients)

    def _begin_step(self) -> None:
        self._survival.begin_step()
        if not self._engine.is_asynchronous:
            self._session.begin_step(self._engine.num_steps())
        if self._batches.are_due:
            self._count_batches(has_one=True)
        self._take_in_changes()
        self._optimizer.begin_step()
        if self._loss_scale is not None:
            self._loss_scale.before_step(self._engine)
        if not self._engine.has_started:
            return
        self._adopt()
        self._step_sums.begin_step(self._engine)
        self._optimizer.tell(self._engine)

    def _end_step(self) -> None:
        self._guard.is_broken = True
        self._set_stream()
        if not self._engine.has_started:
            self._trained.check_places()
            self._start()
        for i, p in enumerate(self._trained.tensors):
            # Of the first step, and from earlier micro-batches.
            if p.grad is not None and not self._gradients.is_offered[i]:
                self._gradients.made_on[i] = ELSEWHERE
                self._offer(i, p)
        self._engine.finish_step()
        # Before the gradients go, which a step needs that has to be made again.
        self._survival.after_step()
        self._updated(len(self._gradients.buckets))
        self._batches.end_step()
        self._gradients.end_step()
        self._rebind()
        self._trained.note_versions()
        self._guard.is_broken = False
        self._step_sums.record_step(self._engine)
        # The next forward pass belongs to the next step.
        self._engine.before_step()
        if self._loss_scale is not None:
            self._loss_scale.after_step(self._engine)
        if self._optimizer.state is not None:
            self._optimizer.state.after_step(self._engine)
        self._watch.end_step(self._engine, self._trained.names)
        self._optimizer.end_step(self._num_skipped)
        self._step_sums.end_backward()
        for callback in self.step_callbacks:
            callback()
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()

    def _num_skipped(self) -> int:
        """Return the steps that were left out. On a GPU, waits until the last one is known."""
        return int(self._engine.metrics()["skipped_steps"])

    def _on_gradient(self, p: torch.Tensor) -> None:
        if not self._passes.is_under_way:
            self._guard.is_broken = self._guard.is_broken or self._passes.has_begun
            self._begin_backward()
        if self._passes.accumulate:
            return
        i = self._gradients.due(p)
        if i is None:
            return
        if self._gradients.on_gpu:
            # Autograd may run every part of a model on a stream of its own.
            self._gradients.made_on[i] = self._set_stream()
        self._offer(i, p)

    def _arrived(self, i: int) -> None:
        """Note a gradient of the first step."""
        self._engine.arrived(i)

    def _start_early(self) -> None:
        """Cut buckets before the first backward pass, in the order that its gradients may have."""
        if self._engine.has_started:
            return
        # The gradient of the last parameter is the first to arrive in a backward pass.
        for i in reversed(range(len(self._trained.tensors))):
            self._arrived(i)
        self._trained.check_places()
        self._start()

    def _start(self) -> None:
        # The engine copies the values from where they were when the module was wrapped.
        self._trained.take_back()
        self._engine.start()
        self._rebind()
        self._optimizer.tell(self._engine)

    def _resume(self, options: str, *, joins: bool) -> None:
        """Go on in another world. Collective of its ranks."""
        if not self._engine.has_started:
            self._trained.take_back()
        else:
            self._engine.write_masters()
        self._engine.resume(options, joins, averages=True)
        self._rebind()
        if joins and self._engine.has_started:
            for p in self._trained.tensors:
                # Sums of a step that the others have made again.
                p.grad = None
            self._optimizer.tell(self._engine)
            increment_versions(self._trained.tensors)
        self._trained.note_versions()

    def _offer(self, i: int, p: torch.Tensor) -> None:
        grad = self._gradients.offer(i, p)
        self._batches.scale(grad)
        num_done = self._engine.gradient_ready(i, grad.data_ptr())
        if num_done != self._gradients.num_done:
            self._updated(num_done)

    @property
    def in_backward(self) -> bool:
        """Whether a backward pass that has reached this wrapper's parameters is under way."""
        return self._passes.is_under_way

    def _updated(self, num_done: int) -> None:
        self._after_update(self._gradients.take_done(num_done))

    def _set_stream(self) -> int:
        """Have the engine work after what this thread has given to PyTorch."""
        if not self._gradients.on_gpu:
            return 0
        stream = current_stream(self._trained.device)
        self._engine.set_stream(stream)
        return stream

    def _after_update(self, parameters: list[torch.nn.Parameter]) -> None:
        """Drop gradients that have been used, and tell autograd of new values."""
        for p in parameters:
            p.grad = None
        increment_versions(parameters)

    # Parameters in the engine's memory.

    def _masters(self) -> contextlib.AbstractContextManager[None]:
        """Have parameters be what an optimizer that runs in Python updates."""
        keep_float32(self._optimizer.optimizer)
        return self._trained.as_masters(self._optimizer.optimizer)

    def _has_loaded(self) -> None:
        self._rebind()
        if self._optimizer.state is not None:
            self._optimizer.state.give_out(self._engine)
        if self._loss_scale is not None:
            self._loss_scale.has_loaded(self._engine)
        self._optimizer.num_skipped = self._num_skipped()
        increment_versions(self._trained.tensors)
        self._trained.note_versions()

    def _rebind(self) -> None:
        if self._trained.rebind(self._engine):
            self._gradients.buckets = self._engine.buckets()
            self._trained.note_versions()

    def _adopt(self) -> None:
        """Go on from what others have written to the parameters."""
        is_written = self._trained.are_written()
        if not self._trained.take_back() and not is_written:
            return
        if self._engine.has_started:
            self._engine.drain()
            self._forget_arrived()
        self._trained.note_versions()
        warnings.warn(
            "parameters were written outside of write_parameters(); training goes on from what "
            "was written, and this rank's next step mixes nothing",
            stacklevel=3,
        )

    def _forget_arrived(self) -> None:
        """Mix nothing in the next step, because other code has written the parameters."""
        self._engine.forget_arrived()
        self._engine.write_masters()

    def _check(self, call: str) -> None:
        self._guard.check(call)
        self._set_stream()


def _loss_scale(scaler: GradScaler | None, optimizer: torch.optim.Optimizer) -> LossScale | None:
    if scaler is None:
        return None
    # Imported when it is used: PyTorch's part of it takes as long as the rest of the package.
    from .scaling import LossScale

    return LossScale(scaler, optimizer)


def _engine_of(model: EngineSteps) -> Callable[[], _core.Engine | None]:
    reference = weakref.ref(model)

    def engine() -> _core.Engine | None:
        found = reference()
        is_usable = found is not None and not found._guard.is_broken and found._session.is_open
        return found._engine if found is not None and is_usable else None

    return engine


def _with_rule(options: Mapping[str, Any], optimizer: WrappedOptimizer) -> Mapping[str, Any]:
    return {**options, "rule_sees_whole_step": True} if optimizer.sees_whole_step else options


def _rule_of(
    model: EngineSteps,
) -> Callable[[list[int], float, list[float], list[Any]], None]:
    reference = weakref.ref(model)

    def rule(buckets: list[int], scale: float, factors: list[float], gradients: list[Any]) -> None:
        found = reference()
        if found is not None:
            if not found._gradients.buckets:
                # A rank that joins makes its first update before it knows where parameters lie.
                found._rebind()
            indices = [found._gradients.buckets[bucket] for bucket in buckets]
            with found._masters():
                found._optimizer.step(indices, scale, factors, gradients)

    return rule
