"""The launcher: its signals, its codes, and the place that it serves."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from conftest import PROJECT, environment
from test_survival import _is_alive, launch, ranks_of

from gossamer.launch import main
from gossamer.rendezvous import serve

# A signal comes when two of four ranks have been started.
STARTING = """
import os, signal, subprocess, sys
from gossamer import launch

# The tests may run under nohup, whose processes ignore SIGHUP.
signal.signal(int(sys.argv[1]), signal.SIG_DFL)

class Popen(subprocess.Popen):
    number = 0
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        Popen.number += 1
        if Popen.number == 2:
            os.kill(os.getpid(), int(sys.argv[1]))

subprocess.Popen = Popen
code = launch.main(["-n", "4", sys.argv[2]])
print(Popen.number, code)
"""

WAITS = "import time\nprint('waits', flush=True)\ntime.sleep(600)\n"
MEETS = """
import gossamer as gs
rank, size = gs.initialize_dist(survive=True)
print(gs.current_session().sum([1.0])[0], flush=True)
"""


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def run(capfd):
    """Launch in this process, which has loaded PyTorch already."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD)
    before = {number: signal.getsignal(number) for number in numbers}

    def launch_here(*arguments):
        code = main([str(argument) for argument in arguments])
        return code, *capfd.readouterr()

    yield launch_here
    for number, handler in before.items():
        signal.signal(number, handler)


def expect_dead(pids):
    end = time.monotonic() + 20
    while any(_is_alive(pid) for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.05)


def set_python(monkeypatch):
    """Have processes find the tests' modules, and print whole lines."""
    for name in ("PYTHONPATH", "PYTHONUNBUFFERED"):
        monkeypatch.setenv(name, environment()[name])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_that_comes_while_ranks_start_ends_all(script, number, code):
    command = [sys.executable, "-c", STARTING, str(int(number)), str(script(WAITS))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split()[-2:] == ["2", str(code)], done.stderr


def test_ranks_that_have_not_met_end_with_their_launcher(script):
    process = launch(script(WAITS), options=("-n", "2"))
    assert [process.stdout.readline() for _ in range(2)] == ["waits\n"] * 2
    ranks = ranks_of(process)
    process.kill()
    process.communicate(timeout=30)
    expect_dead(ranks)


def test_a_signal_that_is_ignored_from_the_start_ends_no_rank(script):
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = launch(script(WAITS), options=("-n", "1"))
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert process.returncode == 143, errors


def test_ctrl_c_in_a_terminal_comes_to_each_rank_once(script, monkeypatch):
    set_python(monkeypatch)
    path = script(
        "import signal, time\ncount = 0\n"
        "def note(*_):\n    global count\n    count += 1\n"
        "signal.signal(signal.SIGINT, note)\nprint('waits', flush=True)\n"
        "while count == 0:\n    time.sleep(0.01)\n"
        "time.sleep(0.5)\nprint('came', count, flush=True)\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        command = [sys.executable, "-m", "gossamer.launch", "-n", "2", str(path)]
        os.execv(sys.executable, command)
    text = b""
    while text.count(b"waits") < 2:
        text += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    while text.count(b"came") < 2:
        text += os.read(terminal, 1000)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
    assert text.count(b"came 1") == 2


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        ("sys.exit(0)", "sys.exit(1)", 0),
        ("sys.exit(3)", "sys.exit(74)", 3),
        ("sys.exit(74)", "sys.exit(74)", 74),
        # A rank was killed, and later all others have saved.
        ("os.kill(os.getpid(), 9)", "sys.exit(75)", 75),
    ],
)
def test_the_code_of_the_launcher(script, run, first, second, code):
    path = script(
        "import os, sys, time\nfrom pathlib import Path\n"
        "note = Path(__file__).with_suffix('.pid')\n"
        "if os.environ['GOSSAMER_RANK'] == '0':\n"
        f"    note.with_suffix('.new').write_text(str(os.getpid()))\n"
        f"    note.with_suffix('.new').rename(note)\n    {first}\n"
        "while not note.exists() or Path('/proc', note.read_text()).exists():\n"
        f"    time.sleep(0.05)\n{second}\n"
    )
    assert run("-n", "2", path)[0] == code


def test_the_launcher_names_a_signal_that_has_no_name(script, run):
    path = script("import os, signal\nos.kill(os.getpid(), signal.SIGRTMIN + 1)\n")
    code, _, errors = run("-n", "1", path)
    assert code == 128 + signal.SIGRTMIN + 1
    assert f"signal {signal.SIGRTMIN + 1} (" in errors


def test_ranks_that_begin_a_run_join_none(script, run, monkeypatch):
    monkeypatch.setenv("GOSSAMER_JOIN", "127.0.0.1:1")
    path = script("import os\nprint(os.environ.get('GOSSAMER_JOIN'))\n")
    assert run("-n", "1", path)[:2] == (0, "None\n")


def test_another_process_may_serve_the_place(script):
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    store = serve("127.0.0.1", listening.detach(), port, 60.0)
    process = launch(script(MEETS), options=("-n", "2", "--rendezvous", f"127.0.0.1:{port}"))
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "2.0\n2.0\n"), errors
    del store


def test_two_launchers_start_one_run(script):
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        common = ("-n", "1", "--hosts", "2", "--rendezvous", f"127.0.0.1:{holder.getsockname()[1]}")
        path = script(MEETS)
        both = [launch(path, options=(*common, "--host", str(host))) for host in range(2)]
        ends = [(*process.communicate(timeout=60), process.returncode) for process in both]
    assert [(out, code) for out, _, code in ends] == [("2.0\n", 0)] * 2, ends


def test_a_place_that_is_none_is_refused_once(script, run):
    code, _, errors = run("-n", "3", "--rendezvous", "nowhere", script(WAITS))
    assert code == 2
    assert len(re.findall("nowhere", errors)) == 1
    assert "allowed: HOST:PORT" in errors


def test_a_module_is_started(script, run, monkeypatch):
    path = script("import sys\nprint(__name__, sys.argv[1:])\n")
    monkeypatch.chdir(path.parent)
    assert run("-n", "1", "-m", "script", "-n", "7")[:2] == (0, "__main__ ['-n', '7']\n")


RESTARTED = """
import os, signal, sys, time
import torch, gossamer as gs
from conftest import loss_of, make_mlp

restarted = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) > 0
place = os.environ["GOSSAMER_RENDEZVOUS"]
gs.initialize_dist(survive=True, join=place if restarted else "")
torch.set_num_threads(1)
model = gs.DecentralizedDataParallel(make_mlp(), torch.optim.AdamW, "base-k")
last = model.num_steps + 20 if restarted else None

def note(change):
    global last
    if change.joined:
        last = change.step + 20

model.session.on_change(note)
while last is None or model.num_steps < last:
    if sys.argv[1] == "dies" and not restarted and model.num_steps == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    loss_of(model, 0, model.num_steps).backward()
    time.sleep(0.01)
print("end", model.session.members, flush=True)
"""


def test_a_rank_that_torchrun_starts_again_joins(script, tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_SECRET", "a secret for these tests")
    monkeypatch.setenv("GOSSAMER_RENDEZVOUS", f"file:{tmp_path}")
    monkeypatch.setenv("GOSSAMER_WORLD_SIZE", "3")
    set_python(monkeypatch)
    path = script(RESTARTED)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1"]
    hosts = [
        subprocess.Popen(
            [*torchrun, f"--nproc-per-node={number}", str(path), what],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, what in ((2, "lives"), (1, "dies"))
    ]
    ends = [(*host.communicate(timeout=150), host.returncode) for host in hosts]
    assert [code for _, _, code in ends] == [0, 0], ends
    members = re.findall(r"end (.*)", "".join(out for out, _, _ in ends))
    assert len(members) == 3, ends
    assert len(set(members)) == 1
    assert "3]" in members[0]


VANISHES = """
import os, subprocess, sys, time
import torch, gossamer as gs
from conftest import loss_of, make_mlp

gs.initialize_dist(timeout_s=5, survive=True, silence_s=1)
torch.set_num_threads(1)
model = gs.DecentralizedDataParallel(make_mlp(), torch.optim.AdamW, "base-k")
last = None

def note(change):
    global last
    last = change.step + 20

model.session.on_change(note)
while last is None or model.num_steps < last:
    if os.environ["GOSSAMER_HOST"] == "2" and model.num_steps == 5:
        subprocess.run([sys.argv[1], "link", "2", "down"], check=True)
    loss_of(model, 0, model.num_steps).backward()
    time.sleep(0.01)
print("end", model.session.members, flush=True)
"""


def test_launchers_go_on_without_a_host_that_vanishes(script, monkeypatch):
    hosts = str(PROJECT / "scripts" / "hosts.sh")
    monkeypatch.setenv("GOSSAMER_SECRET", "a secret for these tests")
    set_python(monkeypatch)
    launcher = (
        f"{sys.executable} -m gossamer.launch -n 1 --hosts 3 --host $GOSSAMER_HOST "
        f"--rendezvous host0:29400 {script(VANISHES)} {hosts}"
    )
    done = subprocess.run(
        [hosts, "--hosts", "3", "each", "bash", "-c", launcher],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    if done.returncode == 77:
        pytest.skip(done.stderr)
    # The host that has vanished reaches neither the others nor the place.
    assert done.returncode == 74, done.stderr
    assert done.stdout.count("end [0, 1]\n") == 2, done.stdout + done.stderr
    assert "rank 2 has ended with code 74" in done.stderr
