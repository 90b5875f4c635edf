"""All state of a training run: in the files of a folder, or as a dict of tensors."""

from __future__ import annotations

import io
import json
import os
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from . import _core
from .buffers import copy_into
from .devices import on_host
from .groups import WrappedOptimizer
from .plain_values import check_readable, plain

if TYPE_CHECKING:
    from .distributed import Session

__all__ = ["SPELLED", "TYPES_OF_PIECES", "StateCopy", "TrainingState"]

# The types that pieces of state have, as safetensors files spell them.
TYPES_OF_PIECES = {
    "F32": torch.float32,
    "F64": torch.float64,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "U8": torch.uint8,
}
SPELLED = {dtype: spelled for spelled, dtype in TYPES_OF_PIECES.items()}

# The key of what Python alone knows: numbers of the optimizer, of the schedule, and of the run.
_PYTHON = "python"


class TrainingState:
    """Saves and loads what the engine, the module, the optimizer and its schedule hold.

    Parameters
    ----------
    session
        The session, whose ranks save and load together.
    engine
        The engine, which knows parameters and the states of optimizer and algorithm.
    module
        Its tensors that are not trained are saved, too.
    trained
        The parameters that the engine trains.
    optimizer, lr_scheduler
        What has numbers in Python.
    registered
        The user's own objects with a state_dict(), by name.
    """

    def __init__(
        self,
        session: Session,
        engine: _core.Engine,
        module: torch.nn.Module,
        trained: list[torch.nn.Parameter],
        optimizer: WrappedOptimizer,
        lr_scheduler: Any,
        registered: Mapping[str, Any],
    ) -> None:
        self._session = session
        self._engine = engine
        self._module = module
        self._trained = {id(p) for p in trained}
        self._optimizer = optimizer
        self._lr_scheduler = lr_scheduler
        self._registered = dict(registered)

    def register(self, name: str, owner: Any) -> None:
        """Save and load an object of the user's as well."""
        if self._registered.get(name, owner) is not owner:
            raise _core.ConfigError(f"register_state(): {name} is registered already")
        self._registered[name] = owner

    def renew(self, engine: _core.Engine, trained: list[torch.nn.Parameter]) -> None:
        """Go on with another engine, which trains these parameters."""
        self._engine = engine
        self._trained = {id(p) for p in trained}

    def save(self, folder: str | os.PathLike[str], rank: int) -> None:
        """Write the files of a rank. Collective."""
        os.makedirs(folder, exist_ok=True)
        self.copy({}).write(os.fspath(folder), rank)

    def copy(
        self, more: Mapping[str, Any], tensors: Mapping[str, torch.Tensor] | None = None
    ) -> StateCopy:
        """Return a copy of the state, of more that Python alone knows, and of more tensors.

        Collective. The tensors are dense, and on the host.
        """
        # First, because it may be refused.
        own = self.of_python(more)
        file = io.BytesIO()
        torch.save(own, file)
        # Copies live as long as the engine reads them.
        others = self._others()
        others += [_OtherTensor(name, t, t) for name, t in (tensors or {}).items()]
        return StateCopy(self._engine.snapshot([o.described() for o in others]), file.getvalue())

    def load(self, folder: str | os.PathLike[str], rank: int) -> None:
        """Go on from the files of a rank."""
        own = _numbers_in(folder, rank)
        self._check_run(str(folder), own, _ranks_in(folder, rank, self._session.world_size))
        self._load_tensors(_tensors_in(folder, rank))
        self.load_python(own)

    def load_checkpoint(self, folder: str, rank: int, tensors: str) -> dict[str, Any]:
        """Go on from the numbers of a rank, and from a file of tensors, or from the rank's own.

        Returns
        -------
        dict
            The numbers, with those of copy() that this class does not know.
        """
        own = _numbers_in(folder, rank)
        self._load_tensors(tensors or _tensors_in(folder, rank))
        self.load_python(own)
        return own

    def _load_tensors(self, path: str) -> None:
        others = self._others()
        self._engine.load(path, [o.described() for o in others])
        _copy_back(others)

    def to_dict(self) -> dict[str, Any]:
        """Return the state as tensors that share no memory with others."""
        own = self._module.state_dict(keep_vars=True)
        others = self._others()
        state: dict[str, Any] = {}
        for name, kind, shape, values in self._engine.state([o.described() for o in others]):
            flat = (
                torch.frombuffer(values, dtype=TYPES_OF_PIECES[kind])
                if len(values) > 0
                else torch.empty(0, dtype=TYPES_OF_PIECES[kind])
            )
            like = own.get(name)
            if like is not None and like.dtype not in SPELLED:
                flat = flat.view(like.dtype)  # The engine takes it for bytes.
            state[name] = flat.reshape(shape if like is None else like.shape)
        return state | {_PYTHON: self.of_python()}

    def from_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what to_dict() has returned."""
        own = self._module.state_dict(keep_vars=True)
        _refuse_state_of_module(state, own)
        self._check_run("the state", state.get(_PYTHON, {}))
        given = []
        for name, tensor in state.items():
            if name == _PYTHON:
                continue
            if not isinstance(tensor, torch.Tensor):
                raise _core.CheckpointError(
                    f"the state: {name} is a {type(tensor).__name__}, allowed: tensors"
                )
            dense = tensor.detach().cpu().contiguous()
            if name in own:
                dense = dense.flatten()
            if dense.dtype not in SPELLED:
                dense = dense.view(torch.uint8)
            given.append((name, dense))
        others = self._others()
        self._engine.load_state(
            [(n, SPELLED[t.dtype], list(t.shape), t.data_ptr()) for n, t in given],
            [o.described() for o in others],
        )
        _copy_back(others)
        self.load_python(state.get(_PYTHON, {}))

    def _others(self) -> list[_OtherTensor]:
        found = [
            (n, p.detach())
            for n, p in self._module.named_parameters()
            if id(p) not in self._trained
        ]
        found += self._module.named_buffers()
        return [_OtherTensor(name, tensor, on_host(tensor).contiguous()) for name, tensor in found]

    def of_python(self, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return what Python alone knows: numbers of optimizer, schedule and run, and `more`."""
        own = {"optimizer": plain(self._optimizer.state_dict())}
        if self._lr_scheduler is not None:
            own["lr_scheduler"] = plain(self._lr_scheduler.state_dict())
        if self._registered:
            own["registered"] = {
                name: plain(owner.state_dict()) for name, owner in self._registered.items()
            }
        own["run"] = {
            "world_size": self._session.world_size,
            "steps": int(self._engine.metrics()["steps"]),
        }
        own |= {key: plain(value) for key, value in (more or {}).items()}
        check_readable(own)
        return own

    def _check_run(self, what: str, own: Mapping[str, Any], num_ranks: int | None = None) -> None:
        """Refuse, on all ranks, what another number of ranks or another step has left. Collective.

        The command line program's states say neither; the number of files then counts.
        """
        if self._engine.has_started:
            # Asynchronous ranks may still wait for this rank's messages.
            self._engine.drain()
        run = {"world_size": num_ranks} | dict(own.get("run", {}))
        found = [json.loads(text) for text in self._session.all_gather(json.dumps(run))]
        here = self._session.world_size
        for rank, one in enumerate(found):
            saved = one["world_size"]
            if saved is not None and saved != here:
                raise _core.CheckpointError(
                    f"{what} is that of a run of {saved} ranks, and rank {rank} of {here} ranks "
                    f"loads it, allowed: {saved} ranks. Start as many, or begin a new run from the "
                    "mean of the models, as global_average() has it"
                )
        steps = [one.get("steps") for one in found]
        if not self._engine.is_asynchronous and None not in steps and len(set(steps)) > 1:
            raise _core.CheckpointError(
                f"{what}: the ranks' files are of different steps, {_by_rank(steps)}, allowed: "
                "files that all ranks have written at the same step"
            )

    def load_python(self, own: Mapping[str, Any]) -> None:
        """Go on from what of_python() has returned, on this rank or on another one."""
        if "optimizer" in own:
            self._optimizer.load_state_dict(own["optimizer"])
        steps = own.get("run", {}).get("steps")
        if steps is not None and steps != int(self._engine.metrics()["steps"]):
            raise _core.CheckpointError(
                f"the tensors are those of step {int(self._engine.metrics()['steps'])}, and the "
                f"numbers of the optimizer those of step {steps}; save() was interrupted between "
                "two files. Load an older folder"
            )
        if self._lr_scheduler is not None and "lr_scheduler" in own:
            self._lr_scheduler.load_state_dict(own["lr_scheduler"])
        for name, state in own.get("registered", {}).items():
            if name in self._registered:
                self._registered[name].load_state_dict(state)


class StateCopy(NamedTuple):
    """A copy of a rank's state, which any thread may write."""

    tensors: _core.Snapshot
    numbers: bytes

    def write(self, folder: str, rank: int) -> dict[str, tuple[int, str]]:
        """Write the files of a rank, and return the bytes and the SHA-256 of each by its name."""
        path = _python_in(folder, rank)
        with open(f"{path}.part", "wb") as file:
            file.write(self.numbers)
            file.flush()
            os.fsync(file.fileno())
        tensors = _tensors_in(folder, rank)
        digest = self.tensors.write(tensors)
        # The newer file of a folder that save() writes again and again says which step it is of.
        os.replace(f"{path}.part", path)
        return {
            os.path.basename(tensors): digest,
            os.path.basename(path): _core.digest_of_file(path),
        }


class _OtherTensor(NamedTuple):
    """A tensor of the module that the engine does not train."""

    name: str
    tensor: torch.Tensor
    dense: torch.Tensor
    """The tensor's own memory, or a copy in row-major order on the host."""

    def described(self) -> tuple[str, str, int, int]:
        kind = str(self.dense.dtype).removeprefix("torch.")
        size = self.dense.numel() * self.dense.element_size()
        return self.name, kind, self.dense.data_ptr(), size


@torch.no_grad()
def _copy_back(others: list[_OtherTensor]) -> None:
    for other in others:
        if other.dense.data_ptr() != other.tensor.data_ptr():
            copy_into(other.tensor, other.dense)


def _refuse_state_of_module(state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    names = {name.removeprefix("module.") for name in state}
    if "run/num_arrived" in state or not names or not names <= set(own):
        return
    raise _core.CheckpointError(
        "this is the state_dict() of a module, without the optimizer and the run, allowed: what "
        "the wrapper's own state_dict() has returned. To load the module: with "
        "model.write_parameters(): model.module.load_state_dict(state)"
    )


def _by_rank(steps: list[Any]) -> str:
    return ", ".join(f"{step} on rank {rank}" for rank, step in enumerate(steps))


def _ranks_in(folder: str | os.PathLike[str], rank: int, world_size: int) -> int | None:
    """Return how many ranks have left files in a folder, if that is not as many as there are."""
    num_files = len(list(pathlib.Path(folder).glob("rank-*.safetensors")))
    # Hosts may have folders of their own, which lack the files of others.
    is_odd = num_files > world_size or not os.path.exists(_tensors_in(folder, rank))
    return num_files if is_odd and num_files > 0 else None


def _numbers_in(folder: str | os.PathLike[str], rank: int) -> dict[str, Any]:
    """Read what Python alone knows. The command line program writes no such file."""
    path = _python_in(folder, rank)
    if not os.path.exists(path):
        return {}
    found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return found


def _tensors_in(folder: str | os.PathLike[str], rank: int) -> str:
    return os.path.join(folder, f"rank-{rank:05d}.safetensors")


def _python_in(folder: str | os.PathLike[str], rank: int) -> str:
    return os.path.join(folder, f"python-{rank:05d}.pt")
