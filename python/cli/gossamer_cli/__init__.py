"""The command line program of gossamer, linked to the PyTorch that is installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path
from typing import NoReturn

__all__ = ["main"]

_WANTED = "2.11"
_FOLDER = Path(__file__).parent
_CONFIG_ERROR = 2


def main() -> NoReturn:
    """Become the program, with this process's arguments."""
    program = _FOLDER / "bin" / "gossamer"
    libraries = _libraries()
    # Where PyTorch lies beside this package, the program finds it by itself.
    if libraries != _FOLDER.parent / "torch" / "lib":
        path = os.environ.get("LD_LIBRARY_PATH", "")
        os.environ["LD_LIBRARY_PATH"] = f"{libraries}:{path}" if path else str(libraries)
    os.execv(program, ["gossamer", *sys.argv[1:]])


def _libraries() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        _fail(f"PyTorch is not installed; type: pip install torch=={_WANTED}.*")
    try:
        found = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        found = "of an unknown version"
    if not found.startswith(f"{_WANTED}."):
        _fail(
            f"PyTorch is {found}, and this program is linked to {_WANTED}; type: "
            f"pip install torch=={_WANTED}.*"
        )
    return Path(spec.submodule_search_locations[0]) / "lib"


def _fail(message: str) -> NoReturn:
    print(f"gossamer: {message}", file=sys.stderr)
    sys.exit(_CONFIG_ERROR)
