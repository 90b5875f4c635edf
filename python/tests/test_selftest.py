"""python -m gossamer: its self-test, and what the self-test says of a fault."""

from __future__ import annotations

import pytest
import torch
from conftest import needs_mpi, run_python

import gossamer as gs
from gossamer import selftest, selftest_training


# The checks of a rank alone run among three as well, and test_without_pytorch starts it alone.
@pytest.mark.parametrize(
    "num_processes",
    [pytest.param(1, marks=pytest.mark.wide), pytest.param(3, marks=needs_mpi)],
)
def test_an_installation_that_works(num_processes):
    done = run_python(["-m", "gossamer", "--selftest"], num_processes)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"gossamer {gs.__version__}"
    assert lines[-1] == "all is well"
    assert "ok      a saved run goes on bit for bit" in lines
    assert "ok      gossip mixes: ring" in lines
    assert not any(line.startswith("FAILED") for line in lines)


def test_without_pytorch():
    program = (
        "import runpy, sys; sys.modules['torch'] = None; sys.argv = ['gossamer', '--selftest'];"
        "runpy.run_module('gossamer', run_name='__main__')"
    )
    done = run_python(["-c", program])
    assert done.returncode == 0, done.stderr
    assert "PyTorch  not installed: checks of training are left out" in done.stdout
    assert "ok      messages arrive" in done.stdout
    assert "a rank alone" not in done.stdout


def test_version():
    assert run_python(["-m", "gossamer", "--version"]).stdout == f"gossamer {gs.__version__}\n"


class Forgetful(gs.DecentralizedDataParallel):
    def load(self, folder):
        pass


FAULTS = {
    "a rank alone is PyTorch's SGD": ("_train_plain", lambda *_: torch.zeros(47)),
    "gossip mixes: ring": ("topology", lambda name, size: gs.topology("complete", size)),
    "all-reduce": ("_train_plain", lambda *_: torch.zeros(47)),
    "the mean learns: ring": ("_momentum", lambda ps: torch.optim.SGD(ps, lr=1e-9)),
    "a saved run": ("DecentralizedDataParallel", Forgetful),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told(name, monkeypatch, capsys):
    checks = selftest_training.ALONE + selftest_training.TOGETHER
    chosen = [check for check in checks if check.name.startswith(name)][:1]
    assert selftest.run_checks(chosen, 1) == 0
    attribute, wrong = FAULTS[name]
    monkeypatch.setattr(selftest_training, attribute, wrong)
    assert selftest.run_checks(chosen, 1) == 1
    assert f"FAILED  {chosen[0].name}: AssertionError: " in capsys.readouterr().out
