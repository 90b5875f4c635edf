"""Processes: under mpirun, alone, and forked."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap

import pytest
from conftest import SUMS, TRAINING, free_port, needs_mpi, run_python

CHILDREN = """
import os, signal, sys, time
import torch, gossamer as gs
rank, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
gs.initialize_dist("tcp", rendezvous=f"127.0.0.1:{port}", world_size=2, rank=rank, timeout_s=100)
model = torch.nn.Linear(4, 4)
wrapper = gs.DecentralizedDataParallel(
    model, lambda p: torch.optim.SGD(p, lr=0.01), "ring", options={"threads": 2}
)
def step():
    wrapper(torch.randn(8, 4)).square().mean().backward()
def code_of(child):
    for _ in range(600):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.1)
    return "hangs"
step()
if not (child := os.fork()):
    sys.exit(0)
print("the child ends with", code_of(child), flush=True)
step()
if not os.fork():
    while not os.path.exists(folder + "/end"):
        time.sleep(0.05)
    os._exit(0)
if rank == 1:
    # The other rank may still be in the step before.
    while not os.path.exists(folder + "/ready"):
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
open(folder + "/ready", "w").close()
try:
    while True:
        step()
except gs.CommError as error:
    print(error, flush=True)
    os._exit(0)
"""


def test_children_that_live_on_hide_no_death_and_keep_no_port(tmp_path):
    """Data loaders are such children; they end when the test makes the file "end"."""
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", CHILDREN, str(rank), str(port), str(tmp_path)],
            stdout=(tmp_path / f"{rank}.txt").open("w"),
            stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]
    try:
        codes = [rank.wait(timeout=200) for rank in ranks]
        texts = [(tmp_path / f"{rank}.txt").read_text() for rank in range(2)]
        assert codes == [0, -signal.SIGKILL], texts
        for text in texts:
            assert "the child ends with 0" in text
        # A rank that only falls silent is told in other words.
        assert "with rank 1: that rank is lost" in texts[0]
        # The child of the process that served the store lives.
        with socket.socket() as next_run:
            next_run.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            next_run.bind(("127.0.0.1", port))
            next_run.listen()
    finally:
        for rank in ranks:
            rank.kill()
        (tmp_path / "end").touch()


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


SUMMING = f"""
import os, signal, sys
import gossamer as gs
rank, size = gs.initialize_dist(timeout_s=60)
{SUMS}
"""
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
    ("program", "fault", "code", "text"),
    [
        (PROGRAM, "raise ValueError('a bad batch')", 1, "has failed: ValueError: a bad batch"),
        (PROGRAM, "sys.exit(0)", 74, "with rank 1: that rank has left the run"),
        (SUMMING, "os.kill(os.getpid(), signal.SIGKILL)", None, "signal 9"),
        (SUMMING, "raise gs.ConfigError('no')", 2, "has failed: gossamer._core.ConfigError: no"),
    ],
)
def test_processes_end_together(tmp_path, program, fault, code, text):
    done = run_processes(tmp_path, fault, program)
    assert text in done.stdout + done.stderr, done.stderr
    assert "atexit" not in done.stderr
    if code is None:
        assert done.returncode != 0
    else:
        assert done.returncode == code, done.stderr


@needs_mpi
def test_ctrl_c_ends_a_wait(tmp_path):
    # Rank 1 sleeps for longer than the test may take. Rank 0 waits for it, and gets the signal.
    fault = "import time; time.sleep(600)"
    interrupt = textwrap.dedent(
        """
        import threading
        if rank == 0:
            threading.Timer(3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        for step in range(50):"""
    ).strip()
    done = run_processes(tmp_path, fault, PROGRAM.replace("for step in range(50):", interrupt))
    assert done.returncode == 130, done.stderr
    assert "KeyboardInterrupt" in done.stderr


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
    assert "atexit" not in done.stderr
    assert "backward() in a process that was forked" in done.stdout
    assert "rank 0 of 2: " in done.stdout
