"""A rank's shards of a module that fully_shard() has sharded, as the engine takes them.

FSDP2 keeps a flat, padded block for every parameter, from which it gathers the whole one. The
parameter's local tensor is the first part of that block. The padded size is the same on all ranks
of a node, and the padding is 0. So the engine gets the blocks as its parameters, and moves them
into its own memory, where FSDP goes on to gather from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.dlpack import from_dlpack

from . import _core
from .checks import TYPES, is_sharded
from .parameters import EngineParameters

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = [
    "Shard",
    "ShardedParameters",
    "groups_of",
    "local_of",
    "reshard",
    "shards_of",
]


def groups_of(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Give FSDP's groups of parameters, each with the name of its part; in module order.

    A group has one gather and one reduction. The names that this uses are private, and PyTorch 2.6
    to 2.15 have them.
    """
    for name, part in module.named_modules():
        if not is_sharded(part):
            continue
        state = part._get_fsdp_state()
        # Since PyTorch 2.13 a part may have several.
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:
            groups = [state._fsdp_param_group]
        yield from ((name, group) for group in groups if group is not None)


def reshard(module: torch.nn.Module) -> None:
    """Free all gathered parameters, so that the next forward pass gathers the present values."""
    for part in module.modules():
        if is_sharded(part):
            part.reshard()  # type: ignore[operator]


def local_of(sharded: Any) -> torch.Tensor:
    """Return a rank's own part of a DTensor, in the same memory."""
    local: torch.Tensor = sharded._local_tensor
    return local


class Shard:
    """A rank's shard of one parameter.

    Parameters
    ----------
    name
        The parameter's name in the module.
    record
        FSDP's record of the parameter.
    group
        FSDP's group that has it.
    """

    def __init__(self, name: str, record: Any, group: Any) -> None:
        self.name = name
        self.record = record
        self.group = group
        self._padded: torch.Tensor | None = None

    @property
    def parameter(self) -> Any:
        """The parameter, a DTensor."""
        return self.record.sharded_param

    @property
    def numel(self) -> int:
        """The elements of the padded shard, which are as many on all ranks of the node."""
        return int(self.record.padded_sharded_param_size.numel())

    @property
    def flat(self) -> torch.Tensor:
        """The padded shard in one dimension."""
        found: torch.Tensor = self.record._sharded_param_data
        return found

    def within(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the view of a padded shard that has no padding, in the shard's shape."""
        dim = self.record.fsdp_placement.dim
        size = self.record.sharded_size
        shaped = flat.view(self.record.padded_sharded_param_size)
        return shaped.narrow(dim, 0, size[dim] if size.numel() > 0 else 0)

    def distributed(self, flat: torch.Tensor) -> DTensor:
        """Return a padded shard as a DTensor that is sharded like the parameter."""
        from torch.distributed.tensor import DTensor  # PyTorch 2.4 has no such module.

        p = self.parameter
        return DTensor.from_local(
            self.within(flat),
            p.device_mesh,
            p.placements,
            run_check=False,
            shape=p.shape,
            stride=p.stride(),
        )

    def flattened(self, whole: DTensor) -> torch.Tensor:
        """Return this rank's padded shard of a DTensor, on the host."""
        flat = torch.zeros(self.numel, dtype=whole.dtype)
        self.within(flat).copy_(local_of(whole))
        return flat

    def move(self, home: torch.Tensor) -> None:
        """Have FSDP use other memory, which has the shard's values already."""
        self.record._sharded_param_data = home
        self.parameter._local_tensor = self.within(home)

    def is_at(self, home: torch.Tensor) -> bool:
        """Return whether both FSDP and the parameter use this memory."""
        local = local_of(self.parameter)
        # The address of an empty shard is 0.
        is_local = local.untyped_storage().data_ptr() == home.untyped_storage().data_ptr()
        is_first = local.numel() == 0 or local.data_ptr() == home.data_ptr()
        return self.flat.data_ptr() == home.data_ptr() and is_local and is_first

    def padded(self, grad: torch.Tensor) -> torch.Tensor:
        """Return a gradient as a padded shard in one dimension; without a copy if it has none."""
        local = local_of(grad)
        fits = local.dtype == self.parameter.dtype and local.is_contiguous()
        if fits and local.numel() == self.numel:
            return local.view(-1)
        if self._padded is None or self._padded.device != local.device:
            self._padded = torch.zeros_like(self.flat)
        self.within(self._padded).copy_(local)
        return self._padded


def shards_of(module: torch.nn.Module) -> list[Shard]:
    """Return the shards of all sharded parameters, frozen ones as well, in declared order."""
    records = {
        id(record.sharded_param): (record, group)
        for _, group in groups_of(module)
        for record in group.fsdp_params
    }
    return [
        Shard(name, *records[id(p)]) for name, p in module.named_parameters() if id(p) in records
    ]


class ShardedParameters(EngineParameters):
    """The trained parameters of a sharded module, of which the engine has this rank's shards.

    Parameters
    ----------
    module
        The module, none of whose parts is gathered.
    """

    def _take(self, trained: list[tuple[str, torch.nn.Parameter]]) -> None:
        self._groups = list(groups_of(self._module))
        own = {id(p) for _, p in trained}
        self.shards = [s for s in shards_of(self._module) if id(s.parameter) in own]
        self.names = [s.name for s in self.shards]
        self.tensors = [s.parameter for s in self.shards]
        self.strides = [(1,) for _ in self.shards]
        self.device = self.tensors[0].device
        self._types = [p.dtype for p in self.tensors]
        self._homes = [s.flat for s in self.shards]
        self._masters = {}
        self._generation = 0
        self.note_versions()

    @property
    def memory(self) -> list[torch.Tensor]:
        """The padded shards."""
        return [shard.flat for shard in self.shards]

    def described(self) -> list[tuple[str, list[int], list[int], str, int]]:
        """Return what the engine must know of them."""
        return [
            (s.name, [s.numel], [1], TYPES[s.flat.dtype], s.flat.data_ptr()) for s in self.shards
        ]

    def warn_of_aliases(self) -> None:
        """Warn of nothing: others see a shard through its parameter."""

    def rebind(self, engine: _core.Engine) -> bool:
        """Share the engine's memory, if it has moved; return whether it has."""
        if engine.generation == self._generation:
            return False
        self._generation = engine.generation
        self._homes = [from_dlpack(engine.parameter(i)) for i in range(len(self.shards))]
        for shard, home in zip(self.shards, self._homes, strict=True):
            shard.move(home)
        return True

    def gradient(self, i: int) -> torch.Tensor | None:
        """Return the gradient of this rank's shard of parameter i, with padding."""
        grad = self.tensors[i].grad
        return None if grad is None else self.shards[i].padded(grad)

    def give_gradient(self, i: int, found: Any) -> None:
        """Have this rank's shard of parameter i get the engine's gradient."""
        p = self.tensors[i]
        if found is None:
            p.grad = None
            return
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        local_of(p.grad).copy_(self.shards[i].within(from_dlpack(found)))

    def note_versions(self) -> None:
        """Take the values of this moment for the engine's own."""
        self._written = self._all_versions()

    def are_written(self) -> bool:
        """Return whether other code has written a shard since note_versions()."""
        return self._all_versions() != self._written

    def _all_versions(self) -> list[tuple[int, int]]:
        # Each way of writing raises one of the two.
        return [(p._version, local_of(p)._version) for p in self.tensors]

    def check_places(self) -> None:
        """Refuse parameters that have been replaced, converted or moved since wrapping.

        Raises
        ------
        ConfigError
            With the name of the parameter. Nothing would train it.
        """
        for i, (shard, p) in enumerate(zip(self.shards, self.tensors, strict=True)):
            if shard.parameter is not p:
                raise _core.ConfigError(
                    f"parameter {shard.name} was replaced since it was wrapped, as by "
                    "load_state_dict(assign=True), allowed: assign=False"
                )
            self._check_kind(i, local_of(p))

    def check_kinds(self) -> None:
        """Refuse parameters of another type or device than before."""
        self.check_places()

    def check_gathered(self) -> None:
        """Refuse a step while a part of the module has its whole parameters.

        Raises
        ------
        ConfigError
            The next forward pass would use the values from before the step.
        """
        for name, group in self._groups:
            if not group.is_sharded:
                part = f"part {name}" if name else "the root part"
                raise _core.ConfigError(
                    f"{part} is gathered while step() writes its shards, as after "
                    "set_reshard_after_backward(False), allowed: reshard() before step()"
                )

    def replaced(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Return nothing: check_places() refuses parameters that others have replaced."""
        return []

    @torch.no_grad()
    def take_back(self) -> bool:
        """Move shards home that FSDP has put elsewhere; return whether there were any."""
        self.check_places()
        has_moved = False
        for shard, p, home in zip(self.shards, self.tensors, self._homes, strict=True):
            if not shard.is_at(home):
                shard.within(home).copy_(local_of(p).clone())
                shard.move(home)
                has_moved = True
        return has_moved
