"""The script `gossamer` of the wheel gossamer-cli: it finds PyTorch, and becomes the program."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
import types
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "cli"


@pytest.fixture
def cli(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "gossamer_cli", raising=False)
    return importlib.import_module("gossamer_cli")


def install(monkeypatch, site, version="2.11.0+cu130"):
    """Have PyTorch of a version lie in a folder; None: nowhere."""
    spec = site and types.SimpleNamespace(submodule_search_locations=[str(site / "torch")])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)

    def version_of(name):
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", version_of)


def started(cli, monkeypatch):
    """Return the program, its arguments and where it looks for libraries."""
    calls = []
    monkeypatch.setattr(os, "execv", lambda *command: calls.append(command))
    monkeypatch.setattr(sys, "argv", ["/env/bin/gossamer", "train", "run.yaml"])
    cli.main()
    return *calls[0], os.environ.get("LD_LIBRARY_PATH")


def test_pytorch_beside_it_is_found_by_the_program(cli, monkeypatch):
    install(monkeypatch, FOLDER)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    program = FOLDER / "gossamer_cli" / "bin" / "gossamer"
    assert started(cli, monkeypatch) == (program, ["gossamer", "train", "run.yaml"], None)


def test_pytorch_elsewhere_is_shown_to_the_program(cli, monkeypatch):
    install(monkeypatch, Path("/other"))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/first")
    assert started(cli, monkeypatch)[2] == "/other/torch/lib:/first"


@pytest.mark.parametrize(
    ("site", "version", "message"),
    [
        (None, "", "PyTorch is not installed"),
        (Path("/other"), "2.10.1", "PyTorch is 2.10.1, and"),
        (Path("/other"), None, "PyTorch is of an unknown version, and"),
    ],
)
def test_other_pytorches_are_refused(cli, monkeypatch, capsys, site, version, message):
    install(monkeypatch, site, version)
    with pytest.raises(SystemExit) as end:
        started(cli, monkeypatch)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"gossamer: {message}")
    assert said.endswith("type: pip install torch==2.11.*\n")
