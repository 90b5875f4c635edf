"""The configuration that the folder of a run shows."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .checks import describe_options
from .own_topologies import world_of

if TYPE_CHECKING:
    from .data_parallel import DecentralizedDataParallel

__all__ = ["config_of"]


def config_of(
    folder: pathlib.Path, model: DecentralizedDataParallel, config: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Return what config.yaml shows, as dotted paths and values."""
    options = json.loads(describe_options(model._options, world_of(model.session))[0])
    log = {key: options.pop(key) for key in ("timeline", "timeline_steps") if key in options}
    options.setdefault("topology", "ring")
    for name in ("algorithm", "topology", "codec"):
        value = options[name]
        options[name] = {"name": value} if isinstance(value, str) else value
    # Of an OwnTopology, which is long.
    options["topology"].pop("rounds", None)
    optimizer = model.optimizer
    learning_rate = float(optimizer.param_groups[0]["lr"])
    tree = {
        "run": {"output_dir": str(folder)},
        **options,
        "optimizer": {"name": type(optimizer).__name__, "lr": learning_rate},
        "log": log,
        "config": dict(config),
    }
    return list(_flat(tree, ""))


def _flat(value: Any, path: str) -> Any:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            name = re.sub(r"[^\w-]", "_", str(key))
            yield from _flat(item, f"{path}.{name}" if path else name)
    elif not isinstance(value, Mapping):
        yield path, json.dumps(value, default=str, ensure_ascii=False)
