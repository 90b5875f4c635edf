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
import subprocess
import sys
import tempfile
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

K_MPIEXEC = os.environ.get("MPIEXEC", "")
needs_mpi = unittest.skipUnless(K_MPIEXEC, "built without MPI")


def without_times(record):
    return {key: value for key, value in record.items() if not re.search(r"(_s|_ms|_per_s)$", key)}


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

    def run_command(self, command, code=0):
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True,
                              timeout=K_PATIENCE_S, stdin=subprocess.DEVNULL)
        if code is not None:
            self.assertEqual(done.returncode, code, f"{command}\n{done.stdout}\n{done.stderr}")
        return done

    def gossamer(self, *arguments, code=0):
        return self.run_command([self.program, *arguments], code)

    def mpirun(self, ranks, *arguments, code=0):
        return self.run_command([K_MPIEXEC, "-n", str(ranks), self.program, *arguments], code)

    def launch(self, ranks, *arguments, mpi=False, code=0):
        """A training on rank threads or under mpirun."""
        if mpi:
            return self.mpirun(ranks, "train", *arguments, code=code)
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
