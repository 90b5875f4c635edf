"""Processes that meet without MPI: under torchrun, at an address, in a folder, etcd or a store."""

from __future__ import annotations

import errno
import functools
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time

import pytest
import torch.distributed as dist
from conftest import SUMS, TRAINING, run_python

import gossamer as gs

PROGRAM = f"""
import os, signal, sys
import gossamer as gs
{{before}}
rank, size = gs.initialize_dist(timeout_s={{timeout_s}}, {{arguments}})
{SUMS}
print(f"rank {{{{rank}}}} of {{{{size}}}} on {{{{session.node_size}}}}: {{{{total}}}}")
"""
# A store as gossamer.rendezvous.Store describes it: a file, which one rank at a time has locked.
OWN_STORE = """
import fcntl, pickle, time
class Own:
    def __init__(self, path):
        self.path = path
    def change(self, work):
        with open(self.path, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            values = pickle.loads(file.read() or pickle.dumps({}))
            found = work(values)
            file.truncate(0)
            file.write(pickle.dumps(values))
            return found
    def set(self, key, value):
        self.change(lambda values: values.update({key: value}))
    def get(self, key, limit_s):
        end = time.monotonic() + limit_s
        while not (value := self.change(lambda values: values.get(key))):
            if time.monotonic() > end:
                raise TimeoutError(key)
            time.sleep(0.01)
        return value
    def compare_and_set(self, key, expected, desired):
        def work(values):
            if values.get(key, b"") == expected:
                values[key] = desired
            return values.get(key, b"")
        return self.change(work)
"""
SECRET = "a secret for these tests"


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("GOSSAMER_", "MASTER_", "SLURM_", "TORCHELASTIC_", "OMPI_", "RANK", "WORLD_SIZE")
    for name in [name for name in os.environ if name.startswith(names)]:
        monkeypatch.delenv(name)


@pytest.fixture
def place():
    """An address that nobody else gets meanwhile: this socket has it, and does not listen."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{holder.getsockname()[1]}"


@pytest.fixture
def etcd(tmp_path):
    """etcd that is about to start."""
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed (Debian: etcd-server)")
    try:
        gs.initialize_dist(
            "tcp", 0.1, rendezvous="etcd:http://127.0.0.1:1", world_size=2, secret=SECRET
        )
    except gs.ConfigError as error:
        if "built without libcurl" not in str(error):
            raise
        pytest.skip(str(error))
    except gs.CommError:
        pass
    with socket.socket() as client, socket.socket() as peer:
        for free in (client, peer):
            free.bind(("127.0.0.1", 0))
        at, peers_at = [f"http://127.0.0.1:{free.getsockname()[1]}" for free in (client, peer)]
    arguments = ["--data-dir", str(tmp_path / "etcd"), "--listen-client-urls", at]
    arguments += ["--advertise-client-urls", at, "--listen-peer-urls", peers_at]
    arguments += [
        "--initial-advertise-peer-urls",
        peers_at,
        "--initial-cluster",
        f"default={peers_at}",
    ]
    with (
        open(tmp_path / "etcd.log", "wb") as log,
        subprocess.Popen(["etcd", *arguments], stdout=log, stderr=log) as process,
    ):
        yield f"etcd:{at}"
        process.kill()


def program_with(arguments="", *, before="", fault="pass", timeout_s=60):
    return PROGRAM.format(arguments=arguments, before=before, fault=fault, timeout_s=timeout_s)


def start_text(program, variables=None):
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | (variables or {}),
        # A shell that started the tests in the background may have it ignored.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def start(arguments, *, variables=None, **settings):
    return start_text(program_with(arguments, **settings), variables)


def outcomes(processes):
    """(code, output, errors) of each; the code is -9 for one that had to be killed."""
    # Ranks that wait in vain say so after a minute.
    end = time.monotonic() + 90
    ends = []
    for process in processes:
        try:
            ends.append(process.communicate(timeout=max(end - time.monotonic(), 0.1)))
        except subprocess.TimeoutExpired:
            process.kill()
            ends.append(process.communicate())
    return [(process.returncode, *end) for process, end in zip(processes, ends, strict=True)]


def expect_sums(processes):
    ends = outcomes(processes)
    assert [code for code, _, _ in ends] == [0] * len(ends), ends
    lines = sorted("".join(output for _, output, _ in ends).splitlines())
    size = len(processes)
    total = 49.0 * size + size * (size - 1) / 2
    assert lines == [f"rank {rank} of {size} on {size}: [{total}]" for rank in range(size)]


def run_torchrun(tmp_path, fault, *arguments):
    path = tmp_path / "train.py"
    path.write_text(program_with(fault=fault))
    return run_python(
        ["-m", "torch.distributed.run", "--nproc-per-node", "2", *arguments, str(path)]
    )


# That ranks meet in a standalone run, test_torchrun_ends_when_a_rank_fails shows as well.
@pytest.mark.parametrize(
    "kind", ["static", "c10d", pytest.param("standalone", marks=pytest.mark.wide)]
)
def test_torchrun_starts_ranks_without_a_secret(tmp_path, place, kind):
    host, port = place.split(":")
    arguments = {
        "static": ["--master-addr", host, "--master-port", port],
        "c10d": ["--rdzv-backend", "c10d", "--rdzv-endpoint", place, "--rdzv-id", "this-test"],
        "standalone": ["--standalone"],
    }
    done = run_torchrun(tmp_path, "pass", *arguments[kind])
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2 on 2: [99.0]" in done.stdout
    assert "rank 1 of 2 on 2: [99.0]" in done.stdout


def test_torchrun_ends_when_a_rank_fails(tmp_path):
    done = run_torchrun(tmp_path, "raise ValueError('a bad batch')", "--standalone")
    assert done.returncode != 0
    assert "that rank has failed: ValueError: a bad batch" in done.stderr


def test_ranks_meet_at_an_address(place):
    arguments = f"rendezvous={place!r}, world_size=3"
    expect_sums([start(arguments) for _ in range(3)])


def test_ranks_meet_where_the_environment_says(place):
    variables = {"GOSSAMER_RENDEZVOUS": place, "GOSSAMER_WORLD_SIZE": "2"}
    expect_sums([start("", variables=variables | {"GOSSAMER_RANK": str(rank)}) for rank in (1, 0)])


def test_ranks_meet_in_a_folder_with_a_secret(tmp_path):
    folder = tmp_path / "meet"
    folder.mkdir()
    arguments = f"rendezvous='file:{folder}', world_size=2, secret={SECRET!r}, shared_memory=False"
    expect_sums([start(arguments) for _ in range(2)])
    assert list(folder.iterdir()) == []


SHARING = f"""
import os, torch, gossamer as gs
{OWN_STORE}
settings = dict(
    store=Own(os.environ["STORE"]), world_size=2, rank=int(os.environ["MY_RANK"]), timeout_s=60
)
for shared in (True, False):
    rank, size = gs.initialize_dist(**settings, secret={SECRET!r}, shared_memory=shared)
    {{training}}
    gs.finalize_dist()
"""


def test_ranks_share_memory_unless_the_session_shall_not(tmp_path):
    # Rank 1 prints how many areas of shared memory it has while it trains.
    count = "print('areas:', sum('memfd:gossamer' in line for line in open('/proc/self/maps')))"
    training = textwrap.indent(TRAINING.format(fault=count), 4 * " ").strip()
    program = SHARING.replace("{training}", training)
    processes = [
        start_text(program, {"MY_RANK": str(rank), "STORE": str(tmp_path / "store")})
        for rank in range(2)
    ]
    ends = outcomes(processes)
    assert [code for code, _, _ in ends] == [0, 0], ends
    shared, not_shared = re.findall(r"areas: (\d+)", "".join(output for _, output, _ in ends))
    assert int(shared) > 0
    assert int(not_shared) == 0


def test_ranks_meet_in_etcd(etcd):
    arguments = f"rendezvous={etcd!r}, world_size=2, secret={SECRET!r}"
    # The second time shows that the keys of the first are gone.
    for _ in range(2):
        expect_sums([start(arguments) for _ in range(2)])


def start_in_store(store, before, **settings):
    return [
        start(
            f"store={store}, world_size=2, rank=int(os.environ['MY_RANK']), secret={SECRET!r}",
            before=before,
            variables={"MY_RANK": str(rank)},
            **settings,
        )
        for rank in range(2)
    ]


def test_ranks_meet_in_a_store_of_pytorch(tmp_path):
    store = f"dist.FileStore({str(tmp_path / 'store')!r}, -1)"
    expect_sums(start_in_store(store, "import torch.distributed as dist"))


def test_ranks_meet_in_a_store_of_ones_own(tmp_path):
    expect_sums(start_in_store(f"Own({str(tmp_path / 'store')!r})", OWN_STORE))


@pytest.mark.parametrize(
    ("fault", "codes", "text"),
    [
        ("raise ValueError('a bad batch')", {1}, "that rank has failed: ValueError: a bad batch"),
        ("sys.exit(0)", {0, 74}, "with rank 1: that rank has left the run"),
        ("os.kill(os.getpid(), signal.SIGKILL)", {-9, 74}, "with rank 1: that rank is lost"),
        ("raise gs.ConfigError('no')", {2}, "that rank has failed: gossamer._core.ConfigError: no"),
    ],
)
def test_ranks_end_together(tmp_path, fault, codes, text):
    ends = outcomes(start_in_store(f"Own({str(tmp_path / 'store')!r})", OWN_STORE, fault=fault))
    assert {code for code, _, _ in ends} == codes, ends
    assert text in "".join(errors for _, _, errors in ends)


def test_a_rank_with_another_secret_gets_in_nowhere(place):
    ends = []
    for rank in range(2):
        settings = f"rendezvous={place!r}, world_size=2, rank={rank}, secret='{SECRET} {rank}'"
        ends.append(start(settings, timeout_s=3))
    ends = outcomes(ends)
    assert [code for code, _, _ in ends] == [74, 74], ends
    assert "not signed with this rank's secret" in ends[0][2] + ends[1][2]


def test_missing_ranks_are_named(place):
    with_rank_0 = f"rendezvous={place!r}, world_size=2, rank=0, timeout_s=1"
    done = run_python(["-c", f"import gossamer as gs; gs.initialize_dist({with_rank_0})"])
    assert done.returncode != 0
    assert "CommError: " in done.stderr
    assert "rank 1" in done.stderr


def test_a_folder_without_locks_is_refused(tmp_path, monkeypatch):
    def flock(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(gs.CommError, match=r"has no locks \(No locks available\)"):
        gs.initialize_dist(rendezvous=f"file:{tmp_path}", world_size=2, secret=SECRET)


def test_a_place_that_others_reach_needs_a_secret():
    with pytest.raises(gs.ConfigError, match="python -m gossamer --secret FILE"):
        gs.initialize_dist(rendezvous="192.0.2.1:29500", world_size=2)


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(gs.ConfigError, match="is missing, allowed: the number of ranks"):
        gs.initialize_dist(rendezvous="127.0.0.1:29500")
    with pytest.raises(gs.ConfigError, match='allowed: "secret", "none"'):
        gs.initialize_dist(security="some")
    at = {"rendezvous": "127.0.0.1:29500", "world_size": 2}
    with pytest.raises(gs.ConfigError, match=r"initialize_dist: secret: .*16"):
        gs.initialize_dist(secret="short", **at)
    with pytest.raises(gs.ConfigError, match="allowed: one of the two"):
        gs.initialize_dist(secret=SECRET, security="none", **at)
    for timeout_s in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(gs.ConfigError, match="timeout_s"):
            gs.initialize_dist(timeout_s=timeout_s, **at)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(gs.CommError, match="is a folder that all machines share"):
        gs.initialize_dist(rendezvous=f"file:{tmp_path}/none", world_size=2, secret=SECRET)


def test_one_rank_alone_needs_no_store():
    done = run_python(
        [
            "-c",
            "import gossamer as gs; print(gs.initialize_dist(rendezvous='file:.', world_size=1))",
        ]
    )
    assert done.stdout == "(0, 1)\n", done.stderr


def expect_end_by_ctrl_c(process):
    """The program, which has said that it begins, waits for others until Ctrl-C."""
    assert process.stdout.readline() == "begun\n"
    # Long enough to be waiting; also earlier, the program must end as it does here.
    time.sleep(2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    ((code, _, errors),) = outcomes([process])
    assert "KeyboardInterrupt" in errors
    assert code in (130, -signal.SIGINT)


@pytest.mark.parametrize("rank", [0, 1], ids=["that-serves", "that-connects"])
def test_ctrl_c_ends_the_wait_for_others(place, rank):
    arguments = f"rendezvous={place!r}, world_size=2, rank={rank}"
    # The second connects, because somebody else has the place, who does not answer.
    before = "import torch.distributed; print('begun', flush=True)"
    with socket.socket() as deaf:
        if rank == 1:
            deaf.bind(("127.0.0.2", int(place.split(":")[1])))
            arguments = arguments.replace("127.0.0.1", "127.0.0.2")
        process = start(arguments, before=before)
        expect_end_by_ctrl_c(process)


def test_ctrl_c_ends_the_wait_in_etcd(etcd):
    arguments = f"rendezvous={etcd!r}, world_size=2, secret={SECRET!r}"
    process = start(arguments, before="print('begun', flush=True)")
    expect_end_by_ctrl_c(process)


def test_processes_may_meet_again(tmp_path):
    again = "gs.finalize_dist(); gs.initialize_dist(**settings); gs.finalize_dist()"
    program = (
        "import os, gossamer as gs, torch.distributed as dist\n"
        f"settings = dict(store=dist.FileStore({str(tmp_path / 'store')!r}, -1), world_size=2,\n"
        f"    rank=int(os.environ['MY_RANK']), secret={SECRET!r}, timeout_s=60)\n"
        f"gs.initialize_dist(**settings)\n{again}\n"
    )
    processes = [start_text(program, {"MY_RANK": str(rank)}) for rank in range(2)]
    ends = outcomes(processes)
    assert [code for code, _, _ in ends] == [0, 0], ends


@pytest.mark.parametrize("kind", ["launcher", "address"])
def test_processes_meet_again_where_one_of_them_serves_the_store(place, kind):
    # A rank may find the store of the meeting before, which is about to close.
    host, _, port = place.partition(":")
    settings = dict(timeout_s=60)
    if kind == "address":
        settings |= dict(rendezvous=place, world_size=3)
    program = (
        "import gossamer as gs\n"
        "for _ in range(12):\n"
        f"    gs.initialize_dist(**{settings!r})\n"
        "    gs.finalize_dist()\n"
    )
    launcher = {"MASTER_ADDR": host, "MASTER_PORT": port, "WORLD_SIZE": "3"}
    processes = [
        start_text(program, launcher | {"RANK": str(rank)} if kind == "launcher" else None)
        for rank in range(3)
    ]
    ends = outcomes(processes)
    assert [code for code, _, _ in ends] == [0, 0, 0], ends


@pytest.mark.parametrize("counts", [("0", "0"), ("1", "2")], ids=["new-nodes", "replaced-node"])
def test_attempts_of_torchrun_meet_in_one_store(counts):
    # Every node counts its own restarts, and its store outlives the attempts.
    program = "import gossamer as gs; print(gs.initialize_dist(timeout_s=60))"
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    agent = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_RUN_ID": "run",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    for _ in range(2):
        processes = [
            start_text(
                program, agent | {"RANK": str(rank), "TORCHELASTIC_RESTART_COUNT": counts[rank]}
            )
            for rank in range(2)
        ]
        ends = outcomes(processes)
        assert [code for code, _, _ in ends] == [0, 0], ends


def test_the_package_makes_secrets(tmp_path):
    path = tmp_path / "secret"
    done = run_python(["-m", "gossamer", "--secret", str(path)])
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(pathlib.Path(path).read_text().strip()) == 64
    assert run_python(["-m", "gossamer", "--secret", str(path)]).returncode != 0
