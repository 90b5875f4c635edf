"""The wrapper that trains a module together with other ranks."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch

from ._core import ConfigError, PeerLost
from .autograd import refuse_compiled_autograd
from .average import GlobalAverage
from .checks import check_module, describe_module, share_module
from .clipping import Clipping, clipping_above
from .distributed import Session, current_session, owners_of, register_owner
from .given_optimizers import optimizer_of, schedule_of
from .groups import WrappedOptimizer
from .own_topologies import AnyTopology, engine_text, world_of
from .parameters import EngineParameters
from .sampler import ElasticSampler
from .state import StateCopy, TrainingState
from .steps import EngineSteps
from .survival import Survival

if TYPE_CHECKING:
    from torch.amp.grad_scaler import GradScaler
    from torch.distributed.device_mesh import DeviceMesh
    from typing_extensions import Self

__all__ = ["DecentralizedDataParallel"]

OptimFn = Callable[[list[Any]], torch.optim.Optimizer]


class DecentralizedDataParallel(EngineSteps):
    """Trains a module by gossip. ``loss.backward()`` makes the whole step.

    Every rank builds the same module and wraps it. A backward pass updates the parameters, bucket
    by bucket, and starts the exchanges with the peers of the round; gradients are gone when it
    returns. Read the parameters as you like, and write them only inside write_parameters().

    Parameters
    ----------
    module
        The module to train, on the processor or on one GPU. All ranks get rank 0's parameters and
        buffers.
    optim_fn
        Makes an optimizer from the list of parameters, as ``lambda ps: torch.optim.AdamW(ps)``; or
        an optimizer. The engine does the work of SGD, Adam, AdamW and decent-dp's AccumAdam and
        AccumAdamW in the pass that mixes. Any other optimizer runs in Python between mixing and
        sending: for one bucket after the other if its class is known to update every parameter by
        itself, else once a step. All numbers of ``optimizer.param_groups``, and what others write
        to ``optimizer.state``, are read again at every step.
    topology
        A name, as "base-k", a dict with options, as ``{"name": "base-k", "k": 2}`` for groups
        of up to three ranks, or an OwnTopology. None: "ring". Algorithms without peers ignore it.
    lr_scheduler_fn
        Makes a schedule from the optimizer, which then steps after every step.
    algorithm
        A name, as "gossip" or "allreduce", or a dict with options.
    codec
        What ranks send: "fp32", "bf16", "fp16", "int8", "int4", "topk", or a dict with options.
    with_names
        Whether optim_fn gets pairs (name, parameter).
    scaler
        A torch.amp.GradScaler, for ``scaler.scale(loss).backward()`` and ``scaler.update()``. Steps
        with a gradient that is not finite are left out.
    bucket_size_in_mb
        Size in MiB at which a bucket closes; 0: the first steps try several sizes.
    recipe
        "allreduce": the learning rate and the largest norm were chosen for all-reduce with the same
        total batch, and the wrapper multiplies both by the noise that it measures (recipe_factor).
        Where nothing was measured, one line says so. "own": they stay as they are.
    mesh
        For a module that fully_shard() has sharded inside each node: the mesh of all ranks, whose
        dimension ``nodes="node"`` counts the nodes. docs/guide/islands.md has what differs.
    options
        More options of the engine: device, a dict with exchange ("auto", "nccl", "mpi" or "host")
        and share (whether ranks may share a GPU); grad_clip, grad_clip_norm, nonfinite, threads,
        shared_memory; timeline, a file of JSON that gets what all ranks do in the steps of
        timeline_steps, as ``[10, 30]``, for https://ui.perfetto.dev. The options of a plan(), which
        are sections of the program's configurations, stand for the arguments above.
    session
        The session to train in; None: current_session().

    Raises
    ------
    ConfigError
        For a model or options that differ between the ranks, for impossible options, and for
        parameters that are not float32, float64 or bfloat16, or not on one device.
    """

    def __new__(cls, *args: Any, mesh: DeviceMesh | None = None, **kwargs: Any) -> Self:
        """Make a ShardedDataParallel where there is a mesh, which has its own __init__()."""
        if mesh is None or cls is not DecentralizedDataParallel:
            return super().__new__(cls)
        from .sharded_data_parallel import ShardedDataParallel

        return cast("Self", super().__new__(ShardedDataParallel))

    def __init__(
        self,
        module: torch.nn.Module,
        optim_fn: OptimFn | torch.optim.Optimizer,
        topology: AnyTopology | None = None,
        *,
        mesh: DeviceMesh | None = None,
        lr_scheduler_fn: Callable[[torch.optim.Optimizer], Any] | None = None,
        with_names: bool = False,
        scaler: GradScaler | None = None,
        algorithm: str | Mapping[str, Any] = "gossip",
        codec: str | Mapping[str, Any] = "fp32",
        bucket_size_in_mb: float = 25,
        recipe: str = "own",
        options: Mapping[str, Any] | None = None,
        session: Session | None = None,
    ) -> None:
        if mesh is not None:
            raise ConfigError(
                f"mesh: is given to a {type(self).__name__}, allowed: to DecentralizedDataParallel"
            )
        session = session if session is not None else current_session()
        trained = self._take_module(session, module)
        if bucket_size_in_mb < 0:
            raise ConfigError(f"bucket_size_in_mb: is {bucket_size_in_mb}, allowed: 0 or more")
        made = optimizer_of(optim_fn, trained.with_names() if with_names else list(trained.tensors))
        engine_options: dict[str, Any] = {
            "algorithm": algorithm,
            "codec": codec,
            "bucket_bytes": int(bucket_size_in_mb * 2**20),
            "recipe": recipe,
            **({"nonfinite": "skip"} if scaler is not None else {}),
            **(options or {}),
        }
        if topology is not None:
            engine_options["topology"] = topology
        trained.warn_of_aliases()
        schedule = schedule_of(lr_scheduler_fn, made)
        optimizer = WrappedOptimizer(made, trained)
        if self._updates_in_backward:
            # What is left of training before belongs to no step.
            for p in trained.tensors:
                p.grad = None
        if session.is_elastic:
            _check_elastic(session, scaler)
        joins = session.joins and session.rank < 0
        # The others wait from here on for a rank that joins.
        session.join()
        super().__init__(session, module, trained, optimizer, engine_options, scaler)
        self._clipping = Clipping(engine_options)
        self.lr_scheduler = schedule
        self._sampler: ElasticSampler | None = None
        self._state = TrainingState(
            session,
            self._engine,
            module,
            self._trained.tensors,
            self._optimizer,
            self.lr_scheduler,
            {} if scaler is None else {"scaler": scaler},
        )
        if session.is_elastic:
            self._survival = Survival(self, joins=joins)
        self._engine.before_step()
        # The ranks of an asynchronous algorithm end it together, so it must live that long.
        register_owner(self, keep=self._engine.is_asynchronous)

    def _take_module(self, session: Session, module: torch.nn.Module) -> EngineParameters:
        """Return the parameters of a module with which all ranks begin."""
        check_module(module)
        self._begin_with(session, module)
        return EngineParameters(module)

    @property
    def _session_of_buffers(self) -> Session:
        """The session whose ranks' buffers global_average() averages."""
        return self._session

    def description(self) -> str:
        """Return the lines of the module that must be equal on all ranks."""
        return describe_module(self.module)

    def share_loss(self, lost: PeerLost | None) -> None:
        """Raise PeerLost where ranks that meet in other collectives as well have lost others.

        Parameters
        ----------
        lost
            The loss that this rank has found, which it then raises itself; None: none.
        """

    def furthest_of_node(self, numbers: list[int]) -> list[int]:
        """Return the largest list of the ranks that meet in other collectives as well."""
        return numbers

    def _begin_with(self, session: Session, module: torch.nn.Module) -> None:
        """Have the ranks begin with one model."""
        if session.is_elastic:
            # The ranks compare and share it when they meet (Survival).
            describe_module(module)
        else:
            share_module(session, module)

    # What a training loop calls.

    @property
    def session(self) -> Session:
        """The session in which the wrapper trains."""
        return self._session

    @property
    def num_steps(self) -> int:
        """The steps that this rank has made.

        A rank that joins a run begins with the others' number, and joins at the latest here: so a
        loop that ends after so many steps, or evaluates every so many, does it with the others.
        """
        if self._session.joins:
            self._survival.enter()
        return self._engine.num_steps()

    @property
    def recipe_factor(self) -> float:
        """The factor on the recipe's largest norm in the next step; 1 with ``recipe="own"``.

        Under an optimizer of the Adam family the rate has a factor as well, which is the same for
        Adam and AdamW.
        """
        return self._engine.recipe_factor

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer, whose param_groups count."""
        return self._optimizer.optimizer

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        if torch.compiler.is_compiling():
            # What follows is for the interpreter: the graph of a compiler has the module alone.
            return self.module(*args, **kwargs)
        refuse_compiled_autograd()
        if torch.is_grad_enabled():
            if self._guard.is_finished and self.training:
                raise ConfigError(
                    "finish() has ended the training of this wrapper, and backward() would train "
                    "nothing, allowed: model.module, the module alone, or a new wrapper"
                )
            self._trained.check_places()
            if self.training:
                self._survival.enter()
        start_ns = self._engine.now_ns()
        begin = time.perf_counter()
        output = self.module(*args, **kwargs)
        if torch.is_grad_enabled():
            self._step_sums.add_forward(begin)
        self._engine.record("forward", start_ns)
        return output

    def set_accumulate_grad(self, enable: bool = True) -> None:
        """While on, backward() only adds to the gradients; the next one then makes the step."""
        self._passes.accumulate = enable

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate the gradients of the backward passes inside the scope."""
        before = self._passes.accumulate
        self.set_accumulate_grad(True)
        try:
            yield
        finally:
            self.set_accumulate_grad(before)

    def finish_step(self) -> None:
        """Make a step without a backward pass, with the gradients that have accumulated.

        Collective, as backward() is: for a rank that leaves out a batch, or has none left, while
        others have one. A rank that makes fewer steps keeps the others waiting:

        1. After 8 seconds each of them warns, and says which rank is how many steps behind. The run
           goes on as soon as that rank comes. Each warning doubles these seconds, up to 60.
        2. After initialize_dist()'s timeout_s, or when that rank has left its program, the run ends
           with a CommError that says the same. With survive=True the others go on.
        """
        self._check("finish_step()")
        self._begin_step()
        if not self._engine.has_started:
            # The gradient of the last parameter is the first to arrive in a backward pass.
            for i in reversed(range(len(self._trained.tensors))):
                if self._trained.tensors[i].grad is not None and not self._gradients.is_offered[i]:
                    self._arrived(i)
        self._end_step()

    @contextlib.contextmanager
    def join(self) -> Iterator[None]:
        """Let the ranks have different numbers of batches inside the scope. Collective.

        A rank that leaves its loop earlier makes the steps of the others without a gradient, until
        all have left: it mixes, and updates nothing. Under "allreduce" the gradient of a step is
        the mean over the ranks that have a batch, as that of PyTorch's DistributedDataParallel in
        ``join(divide_by_initial_world_size=False)``. The ranks add up who has a batch in every
        step, which costs one small message to and fro.

        Raises
        ------
        ConfigError
            With a scaler, in a session with survive=True, and where the ranks make different
            numbers of steps anyway.
        """
        self._check("join()")
        why = (
            "the loss scale would count gradients that are not there: allowed without scaler="
            if self._loss_scale is not None
            else "ElasticSampler deals equally many batches there"
            if self._session.is_elastic
            else "the ranks of this algorithm make different numbers of steps anyway"
            if self._engine.is_asynchronous
            else ""
        )
        if why:
            raise ConfigError(f"join(): {why}")
        self._batches.are_counted = True
        try:
            yield
            self._batches.given = None
            while self._count_batches(has_one=False) > 0:
                self.finish_step()
        finally:
            self._batches.are_counted = False

    def backward_weight(self, weight: float) -> None:
        """Weigh this rank's gradient in the next step, as by the number of its tokens.

        The gradient g of a step is then sum_r w_r g_r / sum_r w_r. So the steps are those of one
        process with all tokens, if the loss is a mean over tokens. The ranks add up their weights
        when the step begins, which costs one small message to and fro. All ranks call it before
        the same steps, ahead of backward(), or of the last backward() of a step that accumulates.

        Parameters
        ----------
        weight
            0 or more; the gradient of a rank that gives 0 does not count.

        Raises
        ------
        ConfigError
            With another algorithm than "allreduce", in a session with survive=True, and in the step
            if the weights of all ranks are 0.
        """
        self._check("backward_weight()")
        if not self._averages_gradients:
            raise ConfigError(
                "backward_weight() weighs gradients in their mean, and this algorithm makes no "
                "mean of gradients: each rank steps by its own gradient alone, and a weight would "
                "only make the steps of ranks longer or shorter, and those of Adam not even "
                'that, allowed: algorithm="allreduce"'
            )
        if self._session.is_elastic:
            raise ConfigError(
                "backward_weight(): ranks that are lost would be missing in the sum of the "
                "weights, allowed: a session without survive=True"
            )
        if not 0.0 <= weight < float("inf"):
            raise ConfigError(f"backward_weight(): is {weight}, allowed: 0 or more")
        self._batches.given = float(weight)

    def drain(self) -> None:
        """Wait for the exchanges under way. The next step still mixes in what has arrived."""
        self._engine.drain()

    @contextlib.contextmanager
    def global_average(self, keep: bool = False, buffers: bool = True) -> Iterator[float]:
        """Be the mean of all ranks' models inside the scope. Collective.

        Parameters
        ----------
        keep
            True: the mean stays this rank's model after the scope.
        buffers
            Whether buffers of floating point are averaged, too, and all buffers have their own
            values again after the scope.

        Yields
        ------
        float
            The distance of this rank's model from the mean, an L2 norm over all parameters.
        """
        self._check("global_average()")
        self._survival.enter()
        self._adopt()
        # A rank that is interrupted in between has a part of the mean.
        self._guard.is_broken = True
        average = GlobalAverage(self._engine, self.module, buffers=buffers)
        call = {"buffers": buffers, "keep": keep}
        # None: this rank has joined and made no step, so its model is the mean already.
        mean = self._survival.together(
            call, lambda: average.take(self._session_of_buffers), average.undo
        )
        distance = mean or 0.0
        self._guard.is_broken = False
        self._trained.note_versions()
        self._guard.scope = "global_average()"
        try:
            yield distance
        finally:
            self._guard.scope = ""
            self._set_stream()
            average.leave(keep=keep)
            self._trained.note_versions()

    @contextlib.contextmanager
    def write_parameters(self) -> Iterator[None]:
        """Write parameters inside the scope. Collective; the next step mixes nothing."""
        self._check("write_parameters()")
        if not self._session.joins:
            # The first step gives all ranks the values of rank 0.
            self._survival.enter()
        self._adopt()
        self._engine.drain()
        self._guard.scope = "write_parameters()"
        try:
            yield
        finally:
            self._guard.scope = ""
            self._set_stream()
            self._trained.take_back()
            if self._engine.has_started:
                self._forget_arrived()
            self._trained.note_versions()

    def switch_to(
        self,
        topology: AnyTopology | None = None,
        *,
        algorithm: str | Mapping[str, Any] = "gossip",
        average: bool = False,
    ) -> None:
        """Go on with another algorithm or topology. Collective, between two steps."""
        self._begin_call("switch_to()")
        self._adopt()
        wanted: dict[str, Any] = {"algorithm": algorithm, "average": average}
        if topology is not None:
            wanted["topology"] = topology
        self._engine.switch_to(engine_text(wanted, world_of(self._session)))
        wanted.pop("average")
        self._options = {k: v for k, v in self._options.items() if k != "topology"} | wanted
        self._rebind()
        if self._optimizer.state is not None:
            self._optimizer.state.give_out(self._engine)
        self._trained.note_versions()

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write all state of training into a folder. Collective; also before the first step.

        Each rank writes a file rank-00000.safetensors with parameters, buffers, and the states of
        optimizer and algorithm, under the names of the command line program's checkpoints; and a
        file python-00000.pt with the numbers of the optimizer and of lr_scheduler_fn's schedule.
        """
        self._begin_call("save()")
        self._adopt()
        self._start_early()
        self._state.save(folder, self._session.rank)

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Go on from what save() has written, bit for bit. Collective; also before the first step.

        The number of ranks, the module, the algorithm and the optimizer are those of the saved run;
        buckets may differ, except under the codecs int8, int4 and topk. Takes a checkpoint of the
        command line program, too, but for what only the program knows, such as its place in the
        data.
        """
        if self._has_state_of_others():
            return
        self._begin_call("load()")
        self._state.load(folder, self._session.rank)
        self._has_loaded()

    @property
    def has_newcomers(self) -> bool:
        """Whether a rank joins the run now, or this rank lacks steps or calls of the others.

        Ranks then make no collective calls together before the next step, but for global_average().
        """
        return self._survival.has_newcomers

    def copy_of_state(
        self, more: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
    ) -> StateCopy:
        """Return a copy of what save() writes, and of more, for Checkpoints. Collective."""
        self._check("a checkpoint")
        self._survival.enter()
        self._adopt()
        self._start_early()
        return self._state.copy(more, tensors)

    def load_checkpoint(self, folder: str, rank: int, tensors: str = "") -> dict[str, Any]:
        """Go on from the files of a rank, for Checkpoints. Collective.

        Parameters
        ----------
        folder
            The checkpoint.
        rank
            Whose numbers of the optimizer and the schedule count.
        tensors
            The file of parameters and states; empty: the rank's.

        Returns
        -------
        dict
            What copy_of_state() was given, and the numbers of the optimizer and the schedule.
        """
        self._check("a checkpoint")
        self._survival.enter()
        own = self._state.load_checkpoint(folder, rank, tensors)
        self._has_loaded()
        return own

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        """Return what save() writes, as a dict for torch.save(). Collective, as save() is.

        The module's parameters and buffers have their own names and shapes; "NAME/m" is the
        optimizer's state of the parameter NAME.
        """
        self._begin_call("state_dict()")
        self._adopt()
        self._start_early()
        return self._state.to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # type: ignore[override]
        """Go on from what state_dict() has returned on this rank, as load() does."""
        if self._has_state_of_others():
            return
        self._begin_call("load_state_dict()")
        self._state.from_dict(state)
        self._has_loaded()

    def go_on_in_data(self, restore: Callable[[], None]) -> None:
        """Have the ElasticSampler call `restore` where it goes on, for Checkpoints."""
        if self._sampler is not None:
            self._sampler.restore_with(restore)

    def _begin_call(self, call: str) -> None:
        """Check whether the ranks can make a collective call."""
        self._check(call)
        self._survival.begin_call(call)

    def _has_state_of_others(self) -> bool:
        """Whether this rank has joined a run, and has no state but that of the others."""
        self._survival.enter()
        return self._survival.is_fresh

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clip by the norm of all gradients from the next step on.

        For the place of torch.nn.utils.clip_grad_norm_() in a loop: backward() has made the step,
        and its gradients are gone. The option grad_clip clips the first step as well. All ranks
        call it alike.

        Parameters
        ----------
        max_norm
            The largest L2 norm of this rank's gradients; under "allreduce" of their mean.
        norm_type
            Only 2 is allowed.

        Returns
        -------
        torch.Tensor
            The norm of the last step's gradients, before clipping.
        """
        self._check("clip_grad_norm_()")
        if norm_type != 2:
            raise ConfigError(f"norm_type is {norm_type}, allowed: 2")
        self._clipping.change(self._engine, float(max_norm))
        return torch.tensor(self._engine.gradient_norm())

    def parameters(self, recurse: bool = True) -> Iterator[torch.nn.Parameter]:
        """Return the module's parameters."""
        function = clipping_above(sys._getframe(1))
        if function and all(p.grad is None for p in self._trained.tensors):
            self._clipping.warn_of_no_gradients(function)
        yield from super().parameters(recurse)

    def register_state(self, name: str, owner: Any) -> None:
        """Have save(), load() and ranks that join know the state of an object of yours.

        Parameters
        ----------
        name
            Its name in what save() writes.
        owner
            An object with state_dict() and load_state_dict(), such as a moving average, a schedule
            of your own, or a loader that keeps its place. A rank that joins a run takes rank 0's
            state. Register it before the first step. `scaler` is registered as "scaler".
        """
        if isinstance(owner, ElasticSampler):
            self._sampler = owner
        self._state.register(name, owner)

    # What ranks that join take from others, and do with them.

    def _serve(self, call: Mapping[str, Any]) -> None:
        """Do with the others what they do between two steps. This rank has joined in between."""
        average = GlobalAverage(self._engine, self.module, buffers=call["buffers"])
        try:
            average.take(self._session_of_buffers)
        except PeerLost:
            average.undo()
            raise
        average.leave(keep=call["keep"])
        self._trained.note_versions()

    def _untrained(self) -> list[torch.Tensor]:
        trained = {id(p) for p in self._trained.tensors}
        return [p for p in self.module.parameters() if id(p) not in trained]

    def _numbers(self) -> dict[str, Any]:
        return self._state.of_python()

    def _take_numbers(self, numbers: Mapping[str, Any]) -> None:
        self._state.load_python(numbers)
        if self._optimizer.state is not None and self._engine.has_started:
            self._optimizer.state.give_out(self._engine)

    def set_gradient_scale(self, scale: float) -> None:
        """Multiply gradients by `scale` first: 1/S where a loss has been multiplied by S."""
        self._gradients.scale = scale
        self._engine.set_gradient_scale(scale)

    def metrics(self) -> dict[str, float]:
        """Return sums over all steps of this rank, as a dict that trackers of experiments take.

        Its keys: steps, skipped_steps, bytes_sent, wide_differences of a codec, and seconds:
        forward_s, backward_s; and inside the backward pass pipeline_s with its parts wait_s, for
        peers, and update_s.

        Raises
        ------
        NonFiniteError
            On a GPU: if a step had a gradient that is not finite.
        """
        return self._step_sums.of(self._engine)

    def finish(self) -> None:
        """Wait for the exchanges under way, and free the engine; the program's end does it, too."""
        self.close(failed=False)
        self._guard.is_finished = True

    def close(self, *, failed: bool) -> None:
        """End the work of the engine; without waiting where the run has failed."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        try:
            if not failed and not self._guard.is_broken and self._session.is_open:
                self._survival.end(self._engine.finish)
        finally:
            self._optimizer.release()
            if self._loss_scale is not None:
                self._loss_scale.release()
            self._engine.close()
            self._guard.is_broken = True

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            module = self._modules.get("module")
            if module is None or not hasattr(module, name):
                raise
            raise AttributeError(
                f"{error}; the wrapped module has it: model.module.{name}"
            ) from None

    def _engine_is_new(self) -> None:
        super()._engine_is_new()
        self._clipping.renew(self._engine)
        self._state.renew(self._engine, self._trained.tensors)

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> None:
        """Refuse to be wrapped by PyTorch's class, which asks every module for this."""
        raise ConfigError(
            "the module is in gossamer's DecentralizedDataParallel already, and PyTorch's "
            "DistributedDataParallel around it would look for gradients that backward() has used, "
            "allowed: one of the two; with Hugging Face's accelerate, "
            "gossamer.integrations.accelerate.GossamerAccelerator wraps the plain module"
        )

    def __init_subclass__(cls) -> None:
        """Refuse to be sharded by fully_shard(), which makes a class of its own."""
        super().__init_subclass__()
        if any(base.__name__ == "FSDPModule" for base in cls.__mro__):
            raise ConfigError(
                "fully_shard() shards a module that is in gossamer's DecentralizedDataParallel, "
                "allowed: one of the two; gossamer.ShardedGossip trains sharded modules"
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise TypeError("copy the module instead: copy.deepcopy(model.module)")

    def __reduce__(self) -> Any:
        raise TypeError("save the module instead: torch.save(model.module.state_dict(), path)")


def _check_elastic(session: Session, scaler: GradScaler | None) -> None:
    """Refuse what cannot go on without lost ranks, before a rank that joins stops the others."""
    if scaler is not None:
        raise ConfigError(
            "scaler: its scale is counted by ranks that stay the same, and this session has "
            "survive=True, allowed: bfloat16, which needs no scaler"
        )
    wrappers = [o for o in owners_of(session) if isinstance(o, DecentralizedDataParallel)]
    if any(not wrapper._guard.is_broken for wrapper in wrappers):
        raise ConfigError(
            "the session has survive=True, and another wrapper trains in it already, allowed: one "
            "wrapper at a time. Call finish() of the other one first, or put both modules into one "
            "torch.nn.ModuleList"
        )
