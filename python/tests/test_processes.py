"""Processes: under mpirun, alone, and forked."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time

import pytest
from conftest import TRAINING, needs_mpi, run_python


def test_a_child_that_is_forked_before_anything_has_begun_may_train():
    program = (
        "import os, sys, gossamer as gs\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    print(gs.initialize_dist(), gs.run_threads(2, lambda: gs.current_session().rank))\n"
        "    sys.exit(0)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(0, 1) [0, 1]"


def test_processes_that_have_not_met_are_refused():
    """As torchrun starts them: each would train alone."""
    environment = os.environ | {"RANK": "0", "WORLD_SIZE": "2"}
    done = subprocess.run(
        [sys.executable, "-c", "import gossamer; gossamer.initialize_dist()"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert "WORLD_SIZE says that 2 processes were started" in done.stderr
    assert done.returncode != 0


PROGRAM = f"""
import os, signal, sys
import torch, gossamer as gs
rank, size = gs.initialize_dist(timeout_s=60)
{TRAINING}
with wrapper.global_average() as distance:
    print(f"rank {{{{rank}}}} of {{{{size}}}}: {{{{distance:.3g}}}}", flush=True)
"""


def run_processes(tmp_path, fault, program=PROGRAM):
    path = tmp_path / "train.py"
    path.write_text(program.format(fault=fault))
    return run_python([str(path)], num_processes=2)


@needs_mpi
@pytest.mark.parametrize(
    ("fault", "code", "text"),
    [
        ("pass", 0, "rank 0 of 2: "),
        ("raise ValueError('a bad batch')", 1, "that rank has failed: ValueError: a bad batch"),
        ("sys.exit(0)", 74, "with rank 1: that rank has left the run"),
        ("os.kill(os.getpid(), signal.SIGKILL)", None, "signal 9"),
        ("raise gs.ConfigError('no')", 2, "that rank has failed: gossamer._core.ConfigError: no"),
    ],
)
def test_processes_end_together(tmp_path, fault, code, text):
    done = run_processes(tmp_path, fault)
    assert text in done.stdout + done.stderr, done.stderr
    if code is None:
        assert done.returncode != 0
    else:
        assert done.returncode == code, done.stderr


@needs_mpi
def test_ctrl_c_ends_a_wait(tmp_path):
    # Rank 1 sleeps, and rank 0, which waits for it, gets the signal.
    fault = "import time; time.sleep(50)"
    interrupt = textwrap.dedent(
        """
        import threading
        if rank == 0:
            threading.Timer(3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        for step in range(50):"""
    ).strip()
    begin = time.monotonic()
    done = run_processes(tmp_path, fault, PROGRAM.replace("for step in range(50):", interrupt))
    assert done.returncode == 130, done.stderr
    assert "KeyboardInterrupt" in done.stderr
    assert time.monotonic() - begin < 40


@needs_mpi
def test_forked_workers_load_data_and_cannot_train(tmp_path):
    fault = textwrap.dedent(
        """
            data = torch.utils.data.TensorDataset(torch.ones(8, 8))
            loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2)
            assert len([x.sum() for x, in loader]) == 2
            child = os.fork()
            if child == 0:
                try:
                    wrapper(torch.ones(4, 8)).sum().backward()
                except RuntimeError as error:
                    print(error, flush=True)
                os._exit(0)
            os.waitpid(child, 0)
        """
    )
    done = run_processes(tmp_path, textwrap.indent(fault, 8 * " ").strip())
    assert done.returncode == 0, done.stderr
    assert "backward() in a process that was forked" in done.stdout
    assert "rank 0 of 2: " in done.stdout
