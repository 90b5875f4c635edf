"""The steps that the backward passes of a wrapped module make."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from . import _core
from .autograd import at_end_of_backward, increment_versions
from .changed_module import ModuleWatch, StatePiece, some, with_new_parameters
from .checks import check_parameters, describe_options, share_options, share_tensors
from .devices import current_stream, engine_gpu
from .distributed import owners_of
from .groups import WrappedOptimizer
from .hooks import GradientHook, PassCounts, refuse_wrapped
from .optimizer_state import keep_float32
from .own_topologies import world_of
from .parameters import EngineParameters
from .survival import FixedRanks

if TYPE_CHECKING:
    from torch.amp.grad_scaler import GradScaler

    from .distributed import Session
    from .scaling import LossScale

__all__ = ["EngineSteps"]

# No stream of CUDA has this handle.
_ELSEWHERE = -1


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
        self._pid = os.getpid()
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
        self._earlier_metrics: dict[str, float] = {}
        if optimizer.state is not None:
            optimizer.state.set_engine(_engine_of(self))
        self._on_gpu = trained.device.type == "cuda"
        self._accumulating = False
        self._in_backward = False
        self._end_of_backward: Callable[[], object] = lambda: None
        self._is_broken = False
        self._scope = ""
        self._num_done = 0
        self._gradient_scale: float | None = None
        self._counts_batches = False
        """Whether ranks may have different numbers of batches now, and this one has one."""
        self._weight: float | None = None
        """What backward_weight() has given the next step; None: nothing."""
        self._own_factor = 1.0
        """This rank's gradients of the step are multiplied by this before the ranks add them up."""
        self._backward_ns = 0
        self._buckets: list[list[int]] = []
        self._first_pass: dict[int, int] | None = {}
        """How many gradients each parameter has got in the first pass; None: that is over."""
        self._passes = PassCounts()
        self._places: dict[int, int] = {}
        self._comes_late = bytearray()
        self.lr_scheduler: Any = None
        self.step_callbacks: list[Callable[[], None]] = []
        """Called after every step, before the schedule steps."""
        self._seconds = {"forward_s": 0.0, "backward_s": 0.0}
        self._backward_begin = 0.0
        self._handles: list[Any] = []
        refuse_wrapped(trained.with_names())
        self._number_parameters(trained.tensors)

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

    def _number_parameters(self, new: list[torch.nn.Parameter]) -> None:
        """Know all parameters by their places in the engine, and watch new ones."""
        tensors = self._trained.tensors
        late = {p: self._comes_late[i] for p, i in self._places.items()}
        self._places = {id(p): i for i, p in enumerate(tensors)}
        self._made_on = [0] * len(tensors)
        self._is_offered = bytearray(len(tensors))
        self._laid_out: list[torch.Tensor] = []
        """Whose gradients of this step have got the layout that the engine wants."""
        self._comes_late = bytearray(late.get(id(p), 0) for p in tensors)
        self._handles += [
            p.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                GradientHook(self, is_first=p is tensors[0])
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
        for key, value in old.metrics().items():
            if key not in ("steps", "skipped_steps"):
                self._earlier_metrics[key] = self._earlier_metrics.get(key, 0.0) + value
        old.finish()
        old.close()
        self._trained.take_in(new)
        self._number_parameters([p for _, p in new])
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
        if self._gradient_scale is not None:
            self._engine.set_gradient_scale(self._gradient_scale)

    # The steps of a backward pass.

    def _begin_backward(self) -> None:
        self._check("backward()")
        self._survival.check_entered()
        self._in_backward = True
        self._backward_begin = time.perf_counter()
        if not self._accumulating:
            self._begin_step()
        self._end_of_backward = at_end_of_backward(self._end_backward)
        self._passes.begin(owners_of(self._session), self)

    def _end_backward(self) -> None:
        self._in_backward = False
        if self._accumulating:
            self._count_seconds("backward_s", self._backward_begin)
            return
        if self._updates_in_backward:
            self._passes.end()
        if self._first_pass is not None:
            self._end_first_pass(self._first_pass)
        self._end_step()

    def _count_seconds(self, what: str, begin: float) -> None:
        self._seconds[what] += time.perf_counter() - begin

    def _end_first_pass(self, num_gradients: dict[int, int]) -> None:
        self._first_pass = None
        for i, num in num_gradients.items():
            self._comes_late[i] = num > 1
        if self._engine.has_started:
            return
        for i in sorted(num_gradients, key=lambda i: self._comes_late[i]):
            self._arrived(i)

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
        """Return how many ranks have a batch for the next step. Collective.

        Where gradients are averaged, each batch has its weight in the mean, 1 if none was given.
        """
        weight = float(has_one) if self._weight is None or not has_one else self._weight
        num, total = self._session.sum([float(has_one), weight])
        if num > 0 and self._averages_gradients:
            self._own_factor = self._factor_of(weight, total)
        # The step of a rank without a batch counts no more.
        self._counts_batches = self._counts_batches and has_one
        return int(num)

    def _factor_of(self, weight: float, total: float) -> float:
        """Return the factor of this rank's gradients; `total`: the weights of all, added up."""
        if total <= 0.0:
            raise _core.ConfigError(
                "backward_weight(): the weights of all ranks add up to 0, allowed: more than 0 on "
                "one rank"
            )
        # The engine's mean is over all ranks.
        return self._session.world_size * weight / total

    def _begin_step(self) -> None:
        self._survival.begin_step()
        if not self._engine.is_asynchronous:
            self._session.begin_step(self._engine.num_steps())
        if self._counts_batches or self._weight is not None:
            self._count_batches(has_one=True)
        self._take_in_changes()
        self._optimizer.begin_step()
        if self._loss_scale is not None:
            self._loss_scale.before_step(self._engine)
        if not self._engine.has_started:
            return
        self._adopt()
        self._backward_ns = self._engine.now_ns()
        self._optimizer.tell(self._engine)

    def _end_step(self) -> None:
        self._is_broken = True
        self._set_stream()
        if not self._engine.has_started:
            self._trained.check_places()
            self._start()
        for i, p in enumerate(self._trained.tensors):
            # Of the first step, and from earlier micro-batches.
            if p.grad is not None and not self._is_offered[i]:
                self._made_on[i] = _ELSEWHERE
                self._offer(i, p)
        self._engine.finish_step()
        # Before the gradients go, which a step needs that has to be made again.
        self._survival.after_step()
        self._updated(len(self._buckets))
        self._num_done = 0
        self._weight, self._own_factor = None, 1.0
        self._is_offered = bytearray(len(self._trained.tensors))
        self._return_layouts()
        self._rebind()
        self._trained.note_versions()
        self._is_broken = False
        self._engine.record("backward", self._backward_ns)
        # The next forward pass belongs to the next step.
        self._engine.before_step()
        if self._loss_scale is not None:
            self._loss_scale.after_step(self._engine)
        if self._optimizer.state is not None:
            self._optimizer.state.after_step(self._engine)
        self._watch.end_step(self._engine, self._trained.names)
        self._optimizer.end_step(self._num_skipped)
        if self._backward_begin > 0.0:
            self._count_seconds("backward_s", self._backward_begin)
            self._backward_begin = 0.0
        for callback in self.step_callbacks:
            callback()
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()

    def _num_skipped(self) -> int:
        """Return the steps that were left out. On a GPU, waits until the last one is known."""
        return int(self._engine.metrics()["skipped_steps"])

    def _on_gradient(self, p: torch.Tensor) -> None:
        if not self._in_backward or self._end_of_backward() is None:
            # Autograd drops its callbacks when a backward pass fails.
            self._is_broken = self._is_broken or self._in_backward
            self._begin_backward()
        if self._accumulating:
            return
        i = self._places.get(id(p))
        if i is None:
            return
        if self._first_pass is not None:
            self._first_pass[i] = self._first_pass.get(i, 0) + 1
            return
        if self._comes_late[i]:
            return
        if self._is_offered[i]:
            raise RuntimeError(
                f"parameter {self._trained.names[i]} got a second gradient in one backward pass, "
                "and one in the first step, as happens when two checkpointed parts use it; "
                f"{self._how_to_collect}"
            )
        if self._on_gpu:
            # Autograd may run every part of a model on a stream of its own.
            self._made_on[i] = self._set_stream()
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
        grad = self._trained.gradient(i)
        assert grad is not None
        fits = grad.layout is torch.strided and grad.dtype == p.dtype
        if not fits or grad.stride() != self._trained.strides[i]:
            grad = self._in_layout(i, p, grad)
        if self._own_factor != 1.0:
            # A mean over no tokens is no number, and must not become one of the sum.
            own = grad.detach()
            own.mul_(self._own_factor) if self._own_factor > 0.0 else own.zero_()
        self._is_offered[i] = 1
        num_done = self._engine.gradient_ready(i, grad.data_ptr())
        if num_done != self._num_done:
            self._updated(num_done)

    @property
    def in_backward(self) -> bool:
        """Whether a backward pass that has reached this wrapper's parameters is under way."""
        return self._in_backward and self._end_of_backward() is not None

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

    def _return_layouts(self) -> None:
        """Give gradients the layout of their parameters again, on which fused optimizers rely."""
        for p in self._laid_out:
            if p.grad is not None and p.grad.stride() != p.stride():
                p.grad = torch.empty_like(p).copy_(p.grad)
        self._laid_out.clear()

    def _updated(self, num_done: int) -> None:
        changed = [i for bucket in self._buckets[self._num_done : num_done] for i in bucket]
        self._num_done = num_done
        if self._on_gpu:
            self._keep_gradients(changed)
        self._after_update([self._trained.tensors[i] for i in changed])

    def _set_stream(self) -> int:
        """Have the engine work after what this thread has given to PyTorch."""
        if not self._on_gpu:
            return 0
        stream = current_stream(self._trained.device)
        self._engine.set_stream(stream)
        return stream

    def _keep_gradients(self, changed: list[int]) -> None:
        """Keep the memory of gradients of other streams until the engine has read them."""
        stream = current_stream(self._trained.device)
        for i in changed:
            grad = self._trained.gradient(i)
            if grad is not None and self._made_on[i] != stream:
                grad.record_stream(torch.cuda.current_stream(self._trained.device))

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
            self._buckets = self._engine.buckets()
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
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"{call} in a process that was forked from the one that trains; start it with "
                "the method 'spawn', or let it only load data"
            )
        self._set_stream()
        if self._scope:
            raise RuntimeError(f"{call} inside the scope of {self._scope}; let the scope end first")
        if self._is_broken:
            raise RuntimeError(
                f"{call} after a step that has failed half way, or after finish(); training cannot "
                "go on"
            )


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
        is_usable = found is not None and not found._is_broken and found._session.is_open
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
            if not found._buckets:
                # A rank that joins makes its first update before it knows where parameters lie.
                found._rebind()
            indices = [found._buckets[bucket] for bucket in buckets]
            with found._masters():
                found._optimizer.step(indices, scale, factors, gradients)

    return rule
