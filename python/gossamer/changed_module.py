"""Parameters that a module gets, or that begin to require gradients, after it was wrapped."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable

import torch

from . import _core
from .devices import on_host
from .groups import WrappedOptimizer

__all__ = [
    "STEPS_BEFORE_WARNING",
    "ModuleWatch",
    "StatePiece",
    "some",
    "warn_of_untrained",
    "with_new_parameters",
]

# A piece of an engine's state: name, type, shape, values in row-major order.
StatePiece = tuple[str, str, list[int], bytearray]

# The states of the engine's optimizers; they begin with zeros.
_OF_OPTIMIZERS = {"m", "v", "accumulator", "momentum"}
_MASTER_TYPES = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "F32"}


# A warning names once the parameters that had no update in so many steps.
STEPS_BEFORE_WARNING = 10


class ModuleWatch:
    """Notices that a module's parts, or what they train, have changed.

    Parameters
    ----------
    module
        The module.
    optimizer
        The wrapped optimizer, whose groups may get other parameters.
    """

    def __init__(self, module: torch.nn.Module, optimizer: WrappedOptimizer) -> None:
        self._module = module
        self._optimizer = optimizer
        self._has_warned = False
        self._num_steps = 0
        self.note()

    def note(self) -> None:
        """Take the module and the groups of this moment for those that are known."""
        self._groups = self._optimizer.shape
        self._modules = list(self._module.modules())
        # Kept alive, so that no other object gets the id of one of them.
        self._parts = self._present()
        self._frozen = [p for p in self._module.parameters() if not p.requires_grad]

    def has_changed(self) -> bool:
        """Return whether parts or groups are others, or what was frozen requires gradients."""
        if self._optimizer.shape != self._groups or any(p.requires_grad for p in self._frozen):
            return True
        return list(map(id, self._present())) != list(map(id, self._parts))

    def warn_of_untrained(self, names: list[str]) -> None:
        """Say once which parameters require gradients and are not in the optimizer."""
        if self._has_warned:
            return
        self._has_warned = True
        warn_of_untrained(names)

    def end_step(self, engine: _core.Engine, names: list[str]) -> None:
        """Name once, after some steps, the parameters that no step has updated."""
        self._num_steps += 1
        if self._num_steps != STEPS_BEFORE_WARNING:
            return
        counts = engine.updates()
        unused = [name for name, count in zip(names, counts, strict=True) if count == 0]
        if 0 < len(unused) < len(counts):
            warnings.warn(
                f"{len(unused)} of {len(counts)} parameters have never had a gradient in "
                f"{self._num_steps} steps: {some(unused)}; they are mixed, and not updated",
                stacklevel=3,
            )

    def _present(self) -> list[object]:
        return [
            part
            for module in self._modules
            for part in itertools.chain(module._parameters.values(), module._modules.values())
        ]


def warn_of_untrained(names: list[str]) -> None:
    """Say which parameters require gradients and are in no optimizer."""
    warnings.warn(
        f"{len(names)} parameters require gradients since the module was wrapped, and the "
        f"optimizer lacks them, so that they are neither updated nor mixed: {some(names)}; "
        'call optimizer.add_param_group({"params": ...}) on all ranks',
        stacklevel=5,
    )


def some(names: list[str]) -> str:
    """Return the first of many names, for a message."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def with_new_parameters(
    state: Iterable[StatePiece],
    old_names: list[str],
    new_names: list[str],
    added: dict[str, torch.Tensor],
) -> list[StatePiece]:
    """Return an engine's state as that of an engine with other parameters.

    Parameters
    ----------
    state
        The state of the old engine.
    old_names, new_names
        The parameters of both engines, in their order.
    added
        The parameters that the new engine has and the old one has not, and those that have taken
        the place of one of the same name. They have made no updates.

    Raises
    ------
    ConfigError
        Where the algorithm or the codec keeps something for every parameter, which is unknown
        for a new parameter.
    """
    pieces = {piece[0]: piece for piece in state}
    kept = [name for name in old_names if name in new_names and name not in added]
    suffixes = _states_of(old_names, pieces)
    index = {name: i for i, name in enumerate(new_names)}
    old_order = pieces.pop("run/arrival_order")[3]
    numbers = torch.frombuffer(old_order, dtype=torch.int64).tolist() if old_order else []
    arrived = [old_names[i] for i in numbers]
    order = [index[name] for name in arrived if name in kept]
    # The gradient of the last parameter is the first to arrive in a backward pass.
    order += [index[name] for name in reversed(new_names) if name in added]
    name, kind, shape, _ = pieces.pop("run/num_arrived")
    found = [(name, kind, shape, _numbers([len(order)]))]
    found.append(("run/arrival_order", "I64", [len(order)], _numbers(order)))
    for piece_name, piece in pieces.items():
        if piece_name.startswith("run/") or piece_name.split("/")[0] in kept:
            found.append(piece)
    counted = pieces[f"{old_names[0]}/updates"]
    for name, p in added.items():
        values = on_host(p.detach()).contiguous().flatten()
        values = values.to(torch.float32) if p.dtype == torch.bfloat16 else values
        kind = _MASTER_TYPES[p.dtype]
        found.append((name, kind, [p.numel()], _bytes(values)))
        for suffix in suffixes:
            zeros = bytearray(values.numel() * values.element_size())
            found.append((f"{name}/{suffix}", kind, [p.numel()], zeros))
        found.append((f"{name}/updates", counted[1], counted[2], _numbers([0])))
    return found


def _states_of(names: list[str], pieces: dict[str, StatePiece]) -> list[str]:
    own = set(names)
    suffixes = []
    for piece in pieces:
        name, _, suffix = piece.partition("/")
        if name == "run" or suffix == "updates" or piece in own:
            continue
        if name not in own or suffix not in _OF_OPTIMIZERS:
            raise _core.ConfigError(
                f"parameters that are trained only now, and {piece}, which the algorithm or the "
                "codec keeps for those of before, allowed: gossip or allreduce with codec fp32. "
                "Call finish(), and wrap the module again"
            )
        if suffix not in suffixes:
            suffixes.append(suffix)
    return suffixes


def _numbers(values: list[int]) -> bytearray:
    return _bytes(torch.tensor(values, dtype=torch.int64))


def _bytes(values: torch.Tensor) -> bytearray:
    return bytearray(values.numpy().tobytes())
