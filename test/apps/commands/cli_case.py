"""What the tests of the program share: an empty folder, commands and what they end with.

    X_test.py --list           names of all tests, one a line
    X_test.py GOSSAMER NAME    runs one test; exit code 77: skipped

MPIEXEC in the environment is mpirun's path; without it the tests that need it are skipped.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

K_SKIPPED = 77
# For what should take a second or two; only a hang reaches it.
K_PATIENCE_S = 90

K_TINY = """\
run: {seed: 3, steps: 8, output_dir: out}
model: {name: mlp, hidden: 16}
data: {name: glyphs, train_size: 256, val_size: 64, batch_size: 8}
log: {every: 2, consensus_every: 4, eval_every: 4}
"""

# Runs until somebody ends it.
K_LONG = """\
run: {steps: 1000000000, output_dir: out}
model: {name: mlp, hidden: 16}
data: {name: glyphs, train_size: 256, val_size: 64, batch_size: 8}
log: {every: 50}
"""

K_MPIEXEC = os.environ.get("MPIEXEC", "")
needs_mpi = unittest.skipUnless(K_MPIEXEC, "built without MPI")


def without_times(record):
    return {key: value for key, value in record.items() if not re.search(r"(_s|_ms|_per_s)$", key)}


def processes_of(folder):
    """pid -> rank of the programs that run in `folder`."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if not entry.name.isdigit() or os.readlink(entry / "cwd") != str(folder):
                continue
            environment = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        rank = [line.split("=")[1] for line in environment
                if re.match(r"(OMPI_COMM_WORLD_RANK|PMI_RANK|PMIX_RANK|GOSSAMER_RANK)=", line)]
        if rank:
            found[int(entry.name)] = int(rank[0])
    return found


def heed_signals():
    """A child of a shell's background job would ignore SIGINT, and one of nohup SIGHUP."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# The backends whose ranks are processes, as arguments of launch().
K_PROCESS_BACKENDS = ["mpi", "tcp"] if K_MPIEXEC else ["tcp"]


class CliCase(unittest.TestCase):
    """A test in an empty folder of its own."""

    program = ""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gossamer_cli_"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.write("tiny.yaml", K_TINY)

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text) if isinstance(text, str) else path.write_bytes(text)
        return name

    def run_command(self, command, code=0, variables=None):
        """`variables` are added to the environment."""
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True,
                              errors="surrogateescape", timeout=K_PATIENCE_S,
                              stdin=subprocess.DEVNULL, env={**os.environ, **(variables or {})})
        if code is not None:
            self.assertEqual(done.returncode, code, f"{command}\n{done.stdout}\n{done.stderr}")
        return done

    def gossamer(self, *arguments, code=0, variables=None):
        return self.run_command([self.program, *arguments], code, variables)

    def mpirun(self, ranks, *arguments, code=0):
        return self.run_command([K_MPIEXEC, "-n", str(ranks), self.program, *arguments], code)

    def start(self, command, folder="out", until=None):
        """A job, once it trains, or once `until` holds; gone at the end of the test."""
        job = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, text=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               preexec_fn=heed_signals)
        self.addCleanup(self.clear_away, job)
        # An earlier job's status may still be there.
        self.wait_until(lambda: job.poll() is not None or
                        (until() if until else self.status(folder).get("state") == "running"
                         and self.status(folder)["step"] > 0))
        self.assertIsNone(job.poll(), "the job has ended by itself")
        return job

    def clear_away(self, job):
        for pid in [*processes_of(self.folder.resolve()), *([] if job.returncode is not None
                                                            else [job.pid])]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        job.wait()
        job.stderr.close()

    def wait_until(self, condition):
        end = time.monotonic() + K_PATIENCE_S
        while not condition():
            self.assertLess(time.monotonic(), end, "waited too long")
            time.sleep(0.02)

    def status(self, folder="out"):
        path = self.folder / folder / "status.json"
        try:
            return json.loads(path.read_text())
        except FileNotFoundError:
            return {}

    def write_array(self, path, shape, values):
        header = str({"descr": "<f4", "fortran_order": False, "shape": shape})
        header += " " * (-(len(header) + 11) % 64) + "\n"
        self.write(path, b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
                   + struct.pack(f"<{len(values)}f", *values))

    def write_case(self, folder="case", last=0.0, steps=2):
        """A recorded case of one parameter with two elements, two ranks, steps of gradient descent.
        The values are right for two steps."""
        rest = [0.0] * (4 * (steps - 2))
        case = {"world_size": 2, "steps": steps, "total": 2, "order": [0], "bucket_bytes": 64,
                "params": [{"name": "w", "shape": [2], "offset": 0, "weight_decay": 0.0}],
                "buckets": [[0]], "bucket_block_numel": [32], "optim": {"type": "sgd"},
                "edges": [[{"ranks": [0, 1], "weight": 0.5}]] * (steps - 1),
                "mix_edge": [None, *range(steps - 1)], "lrs": [0.5, 1.0, 1.0][:steps]}
        self.write(f"{folder}/case.json", json.dumps(case))
        self.write_array(f"{folder}/init.npy", (2,), [1.0, 2.0])
        self.write_array(f"{folder}/grads.npy", (steps, 2, 2),
                         [1.0, 0.0, 0.0, 1.0, 0.25, 0.25, 0.5, 0.5, *rest])
        # Step 1: [0.5, 2], [1, 1.5]. Their mean is [0.75, 1.75], and step 2 takes its gradient off.
        self.write_array(f"{folder}/expected.npy", (steps, 2, 2),
                         [0.5, 2.0, 1.0, 1.5, 0.5, 1.5, 0.25, 1.25 + last, *rest])
        self.write_array(f"{folder}/final_avg.npy", (2,), [0.375, 1.375])

    def launch(self, ranks, *arguments, mpi=False, tcp=False, overwrite=True, code=0):
        """A training on rank threads, under mpirun, or on processes joined by TCP."""
        if overwrite:
            arguments = [*arguments, "--overwrite"]
        if mpi:
            return self.mpirun(ranks, "train", *arguments, code=code)
        if tcp:
            return self.gossamer("train", *arguments, "--processes", str(ranks), code=code)
        return self.gossamer("train", *arguments, "--ranks", str(ranks), code=code)

    def records(self, folder="out"):
        lines = (self.folder / folder / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def expect_once(self, text, output):
        self.assertEqual(output.count(text), 1, output)


def all_tests():
    for suite in unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"]):
        for test in suite:
            # Thing.test_does_what -> Thing.DoesWhat
            thing, method = test.id().split(".")[-2:]
            words = method.removeprefix("test_").split("_")
            yield test, thing + "." + "".join(word[0].upper() + word[1:] for word in words)


def main():
    if sys.argv[1:] == ["--list"]:
        print("\n".join(sorted(name for _, name in all_tests())))
        return 0
    CliCase.program = os.path.abspath(sys.argv[1])
    chosen = [test for test, name in all_tests() if name == sys.argv[2]]
    if len(chosen) != 1:
        sys.exit(f"no test is called {sys.argv[2]}")
    result = unittest.TextTestRunner(verbosity=2).run(chosen[0])
    if result.skipped:
        return K_SKIPPED
    return 0 if result.wasSuccessful() else 1
