#!/usr/bin/env python3
"""The program from the shell: what it prints, writes and exits with.

cli_test.py --list           names of all tests, one a line
cli_test.py GOSSAMER NAME    runs one test; 77: skipped

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

K_FINAL_FIELDS = {
    "kind", "step", "world_size", "accuracy_mean_model", "accuracy_worst_local",
    "accuracy_mean_local", "loss_mean_model", "consensus_distance", "bytes_sent_per_step",
    "train_s", "samples_per_s", "forward_ms", "backward_ms", "wait_ms", "update_ms",
    "parameter_checksums"}

program = ""
mpiexec = os.environ.get("MPIEXEC", "")


def needs_mpi(test):
    return unittest.skipUnless(mpiexec, "built without MPI")(test)


def without_times(record):
    return {key: value for key, value in record.items() if not re.search(r"(_s|_ms|_per_s)$", key)}


class CliCase(unittest.TestCase):
    """A test in an empty folder of its own."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gossamer_cli_"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.write("tiny.yaml", K_TINY)

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text) if isinstance(text, str) else path.write_bytes(text)

    def run_command(self, command, code=0):
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True,
                              timeout=K_PATIENCE_S, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, code, f"{command}\n{done.stdout}\n{done.stderr}")
        return done

    def gossamer(self, *arguments, code=0):
        return self.run_command([program, *arguments], code)

    def mpirun(self, ranks, *arguments, code=0):
        return self.run_command([mpiexec, "-n", str(ranks), program, *arguments], code)

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


class Help(CliCase):
    def test_has_an_example_for_every_command(self):
        waiting = [[]]
        seen = []
        while waiting:
            command = waiting.pop()
            seen.append(" ".join(command))
            done = self.gossamer(*command, "--help")
            self.assertRegex(done.stdout, r"Examples?:\n  \S*.*gossamer ", command)
            self.assertEqual(done.stderr, "")
            for line in done.stdout.partition("Subcommands:\n")[2].splitlines():
                if not re.match(r"  \S", line):
                    break
                waiting.append([*command, line.split()[0]])
        for command in ["train", "topology", "topology list", "topology show"]:
            self.assertIn(command, seen)

    def test_shows_the_versions_of_everything(self):
        lines = self.gossamer("--version").stdout.splitlines()
        self.assertRegex(lines[0], r"^gossamer \d+\.\d+\.\d+$")
        for name in ["LibTorch", "MPI", "NCCL", "compiler"]:
            self.assertTrue(any(re.match(rf"{name} +\S", line) for line in lines), name)

    @needs_mpi
    def test_is_shown_once_under_mpirun(self):
        self.expect_once("LibTorch", self.mpirun(2, "--version").stdout)
        self.expect_once("Examples:", self.mpirun(2, "--help").stdout)
        self.expect_once("nonsense", self.mpirun(2, "nonsense", code=2).stderr)


class CommandLine(CliCase):
    def test_ends_with_2_when_it_is_wrong(self):
        for arguments in [[], ["nonsense"], ["train"], ["--nonsense"], ["train", "no_such.yaml"],
                          ["train", "tiny.yaml", "--ranks", "0"],
                          ["train", "tiny.yaml", "--ranks", "two"], ["topology"],
                          ["topology", "show", "ring"],
                          ["topology", "show", "ringg", "--world-size", "4"],
                          ["topology", "show", "ring", "--world-size", "0"],
                          ["topology", "show", "ring", "--world-size", "-3"],
                          ["topology", "show", "one-peer-exp", "--world-size", "6"],
                          ["topology", "show", "ring", "--world-size", "6",
                           "--local-world-size", "4"]]:
            with self.subTest(arguments):
                done = self.gossamer(*arguments, code=2)
                self.assertNotEqual(done.stderr, "")
                self.assertEqual(done.stdout, "")
        self.assertEqual([path.name for path in self.folder.iterdir()], ["tiny.yaml"])

    def test_says_what_would_be_right(self):
        done = self.gossamer("topology", "show", "ringg", "--world-size", "4", code=2)
        self.assertIn("did you mean ring?", done.stderr)
        done = self.gossamer("topology", "show", "one-peer-exp", "--world-size", "6", code=2)
        self.assertIn("powers of two", done.stderr)
        self.assertIn("ring", done.stderr)


class Topology(CliCase):
    def test_list_is_json_alone_on_stdout(self):
        done = self.gossamer("topology", "list", "--json")
        rows = json.loads(done.stdout)
        self.assertEqual(done.stderr, "")
        self.assertLessEqual({"complete", "ring", "one-peer-exp", "alternating-exp-ring"},
                             {row["name"] for row in rows})
        for row in rows:
            self.assertTrue(row["summary"])
            for option in row["options"]:
                self.assertEqual(set(option), {"name", "summary"})

    def test_show_is_json_alone_on_stdout(self):
        for row in json.loads(self.gossamer("topology", "list", "--json").stdout):
            done = self.gossamer("topology", "show", row["name"], "--world-size", "8",
                                 "--local-world-size", "2", "--json")
            report = json.loads(done.stdout)
            self.assertEqual(done.stderr, "")
            self.assertEqual(list(report), ["name", "world_size", "local_world_size", "period",
                                            "rounds", "spectral_gap", "exact_after"])
            self.assertEqual([report["name"], report["world_size"], report["local_world_size"]],
                             [row["name"], 8, 2])
            for entry in report["rounds"]:
                ranks = [rank for edge in entry["edges"] for rank in edge["ranks"]]
                self.assertEqual(sorted(ranks), list(range(8)))
                for edge in entry["edges"]:
                    self.assertAlmostEqual(edge["weight"], 1 / len(edge["ranks"]))

    def test_text_names_everything_too(self):
        self.assertIn("one-peer-exp\n", self.gossamer("topology", "list").stdout)
        shown = self.gossamer("topology", "show", "one_peer_exp", "--world-size", "4").stdout
        self.assertIn("round 0: 0-1 2-3\n", shown)
        self.assertIn("round 1: 0-2 1-3\n", shown)


class Train(CliCase):
    def check_folder(self, ranks):
        out = self.folder / "out"
        self.assertEqual(sorted(path.name for path in out.iterdir()),
                         ["config.yaml", "metrics.jsonl", "model.safetensors", "status.json"])
        status = json.loads((out / "status.json").read_text())
        self.assertEqual([status["state"], status["step"], status["total_steps"]], ["done", 8, 8])
        records = self.records()
        self.assertEqual([(record["kind"], record["step"]) for record in records],
                         [("step", 2), ("step", 4), ("eval", 4), ("step", 6), ("step", 8),
                          ("eval", 8), ("final", 8)])
        for record in records:
            self.assertNotIn(None, record.values())
            # Measured in steps 4 and 8, and in evaluations.
            self.assertEqual("consensus_distance" in record, record["step"] % 4 == 0)
        final = records[-1]
        self.assertEqual(set(final), K_FINAL_FIELDS)
        self.assertEqual(final["world_size"], ranks)
        self.assertEqual(len(final["parameter_checksums"]), ranks)
        self.assertEqual(len(set(final["parameter_checksums"])), ranks)
        self.assertEqual(final["consensus_distance"] > 0, ranks > 1)
        self.assertLessEqual(final["accuracy_worst_local"], final["accuracy_mean_local"])
        header_size, = struct.unpack("<Q", (out / "model.safetensors").read_bytes()[:8])
        header = json.loads((out / "model.safetensors").read_bytes()[8:8 + header_size])
        self.assertEqual(header["first.weight"]["shape"], [16, 784])

    def check_runs(self, ranks, mpi):
        done = self.launch(ranks, "tiny.yaml", mpi=mpi)
        self.expect_once("everything about this run is in out", done.stdout)
        self.expect_once("step 4/8", done.stderr)
        self.check_folder(ranks)
        first = [without_times(record) for record in self.records()]
        # The resolved configuration is one, and says the same; the second run replaces nothing.
        self.launch(ranks, "out/config.yaml", "run.output_dir=again", mpi=mpi)
        self.assertEqual([without_times(record) for record in self.records("again")], first)
        replaced = self.launch(ranks, "tiny.yaml", "run.seed=4", mpi=mpi)
        self.expect_once("is replaced", replaced.stderr)
        self.check_folder(ranks)
        self.assertNotEqual([without_times(record) for record in self.records()], first)

    def test_runs_on_one_thread(self):
        self.check_runs(1, mpi=False)

    def test_runs_on_two_threads(self):
        self.check_runs(2, mpi=False)

    def test_runs_on_three_threads(self):
        self.check_runs(3, mpi=False)

    @needs_mpi
    def test_runs_on_two_processes(self):
        self.check_runs(2, mpi=True)

    @needs_mpi
    def test_runs_on_three_processes(self):
        self.check_runs(3, mpi=True)

    @needs_mpi
    def test_is_the_same_on_threads_and_processes(self):
        for algorithm in ["gossip", "allreduce", "local"]:
            self.launch(2, "tiny.yaml", f"algorithm={algorithm}")
            self.launch(2, "tiny.yaml", f"algorithm={algorithm}", "run.output_dir=mpi", mpi=True)
            self.assertEqual([without_times(record) for record in self.records("mpi")],
                             [without_times(record) for record in self.records()])

    def test_learns_with_every_plug_in(self):
        for change in ["model.name=cnn", "algorithm=allreduce", "algorithm=local",
                       "topology.name=one-peer-exp", "topology.name=complete",
                       "optimizer.name=sgd", "optimizer.name=adam", "optimizer.name=adamw",
                       "optimizer.name=accum_adam", "lr_schedule.name=linear",
                       "lr_schedule.name=step", "lr_schedule.name=cosine_with_warmup",
                       "buckets.size_mb=0.001", "data.dirichlet_alpha=0.5"]:
            with self.subTest(change):
                self.launch(2, "tiny.yaml", change, "model={name: mlp}"
                            if not change.startswith("model") else "model={name: cnn, width: 2}")
                final = self.records()[-1]
                self.assertEqual(final["kind"], "final")
                self.assertLess(final["loss_mean_model"], 3)

    def test_keeps_quiet_when_told(self):
        done = self.launch(2, "tiny.yaml", "log.level=off")
        self.assertEqual(done.stderr, "")
        self.assertEqual(self.gossamer("train", "tiny.yaml", "log.level=off").stderr, "")

    def test_dry_run_prints_and_writes_nothing(self):
        before = sorted(self.folder.rglob("*"))
        for mpi in [False, True] if mpiexec else [False]:
            done = self.launch(2, "tiny.yaml", "--dry-run", "buckets.size_mb=0.01", mpi=mpi)
            self.expect_once("  batch_size: 8\n", done.stdout)
            self.expect_once("  round 0: 0-1\n", done.stdout)
            self.expect_once("  bucket 0: ", done.stdout)
            self.expect_once("output.bias", done.stdout)
            self.expect_once("8 steps would follow", done.stdout)
            self.assertEqual(done.stderr.replace("\n", ""), "")
            self.assertEqual(sorted(self.folder.rglob("*")), before)


class Errors(CliCase):
    """Every rank leaves, one says why."""

    K_CASES = [
        (K_TINY, ["optimizer.lr=-1"], "command line: optimizer.lr: -1 is out of range, allowed: "),
        (K_TINY + "optimizer:\n  lr: fast\n", [],
         "bad.yaml:6:7: optimizer.lr: fast is not a number, allowed: a number >= 0"),
        (K_TINY + "optimizr:\n  lr: 1\n", [],
         "bad.yaml:5:1: optimizr: unknown key (did you mean optimizer?), allowed: "),
        (K_TINY + "log: {}\n", [], "bad.yaml:5:1: log: duplicate key"),
        (K_TINY + "topology:\n  name: one-peer-exp\n", [], "bad.yaml:6:9: topology.name: "),
        (K_TINY + "lr_schedule: [\n", [], "bad.yaml:"),
        (K_TINY, ["comm.timeout_s=0"], "command line: comm.timeout_s: 0 is out of range"),
        (K_TINY, ["comm.backend=smoke"], "command line: comm.backend: smoke is unknown"),
        (K_TINY, ["optimizer.lr"], "command line: optimizer.lr: not an override, allowed: "),
        (K_TINY, ["comm.local_size=2"], "comm.local_size: 2 does not divide the 3 ranks"),
    ]

    def check_errors(self, mpi):
        for text, overrides, message in self.K_CASES:
            with self.subTest(message):
                self.write("bad.yaml", text)
                done = self.launch(3, "bad.yaml", *overrides, mpi=mpi, code=2)
                self.expect_once(message, done.stderr)
                self.assertEqual(done.stdout, "")
                self.assertFalse((self.folder / "out").exists())

    def test_in_the_configuration_end_with_2(self):
        self.check_errors(mpi=False)

    @needs_mpi
    def test_in_the_configuration_are_said_once_under_mpirun(self):
        self.check_errors(mpi=True)

    @needs_mpi
    def test_of_a_wrong_launch_are_said_once(self):
        done = self.mpirun(2, "train", "tiny.yaml", "--ranks", "3", code=2)
        self.expect_once("--ranks 3", done.stderr)
        done = self.mpirun(2, "train", "tiny.yaml", "comm.backend=threads", code=2)
        self.expect_once("command line: comm.backend: ", done.stderr)
        done = self.gossamer("train", "tiny.yaml", "comm.backend=mpi", "--ranks", "3", code=2)
        self.expect_once("--ranks 3", done.stderr)

    def two_programs(self, other, code=2):
        """Rank 1 has a configuration of its own."""
        self.write("other.yaml", other)
        one = [program, "train", "tiny.yaml", "log.level=off"]
        two = [program, "train", "other.yaml", "log.level=off"]
        return self.run_command([mpiexec, "-n", "1", *one, ":", "-n", "1", *two], code)

    @needs_mpi
    def test_name_the_key_in_which_ranks_differ(self):
        done = self.two_programs(K_TINY + "optimizer: {lr: 0.5}\n")
        self.expect_once('rank 0 has "optimizer.lr: 0.001", rank 1 has "optimizer.lr: 0.5"',
                         done.stderr)
        done = self.two_programs(K_TINY.replace("hidden: 16", "hidden: 17"))
        self.expect_once('rank 1 has "model.hidden: 17"', done.stderr)
        done = self.two_programs(K_TINY + "comm: {timeout_s: 9}\n")
        self.expect_once('rank 1 has "comm.timeout_s: 9"', done.stderr)

    @needs_mpi
    def test_of_one_rank_alone_reach_all(self):
        done = self.two_programs(K_TINY + "optimizer: {lr: fast}\n")
        self.expect_once("on rank 1: other.yaml:5:17: optimizer.lr: fast is not a number",
                         done.stderr)

    def write_idx(self, images_bytes):
        self.write("data/train-images-idx3-ubyte",
                   struct.pack(">iiii", 0x803, 20, 8, 8) + bytes(images_bytes))
        self.write("data/train-labels-idx1-ubyte",
                   struct.pack(">ii", 0x801, 20) + bytes(i % 10 for i in range(20)))

    def test_in_data_end_with_3(self):
        data = "data={name: idx, path: data, batch_size: 2}"
        for mpi in [False, True] if mpiexec else [False]:
            self.write_idx(20 * 64)
            self.launch(2, "tiny.yaml", data, mpi=mpi)
            self.write_idx(20 * 64 - 5)
            done = self.launch(2, "tiny.yaml", data, "run.output_dir=no", mpi=mpi, code=3)
            self.expect_once("data/train-images-idx3-ubyte: byte ", done.stderr)
            self.assertFalse((self.folder / "no").exists())
        self.gossamer("train", "tiny.yaml", "data={name: idx, path: nowhere}", code=3)

    def test_of_the_run_folder_end_with_4(self):
        self.write("taken", "a file")
        for mpi in [False, True] if mpiexec else [False]:
            done = self.launch(2, "tiny.yaml", "run.output_dir=taken/out", mpi=mpi, code=4)
            self.expect_once("taken/out: ", done.stderr)

    def check_divergence(self, mpi):
        # The first step has a finite loss; what it leads to has none.
        done = self.launch(2, "tiny.yaml", "optimizer={name: sgd, lr: 1e20}", mpi=mpi, code=76)
        self.assertRegex(done.stderr, r"rank [01], step 2: the loss is -?(nan|inf); .*optimizer.lr")
        self.assertFalse((self.folder / "out" / "model.safetensors").exists())
        status = json.loads((self.folder / "out" / "status.json").read_text())
        self.assertNotEqual(status["state"], "done")

    def test_of_a_diverging_run_end_with_76(self):
        self.check_divergence(mpi=False)

    @needs_mpi
    def test_of_a_diverging_run_end_with_76_under_mpirun(self):
        self.check_divergence(mpi=True)


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
                if re.match(r"(OMPI_COMM_WORLD_RANK|PMI_RANK|PMIX_RANK)=", line)]
        if rank:
            found[int(entry.name)] = int(rank[0])
    return found


@unittest.skipUnless(mpiexec and os.path.isdir("/proc/self"), "needs MPI and /proc")
class LostRank(CliCase):
    def start(self, ranks, text, *overrides):
        """The job, once it trains, and the process of each rank."""
        self.write("long.yaml", text)
        command = [mpiexec, "-n", str(ranks), program, "train", "long.yaml", *overrides]
        job = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, text=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.addCleanup(self.clear_away, job)
        status = self.folder / "out" / "status.json"
        self.wait_until(lambda: status.exists() and json.loads(status.read_text())["step"] > 0)
        return job, {rank: pid for pid, rank in processes_of(self.folder.resolve()).items()}

    def wait_until(self, condition):
        end = time.monotonic() + K_PATIENCE_S
        while not condition():
            self.assertLess(time.monotonic(), end, "waited too long")
            time.sleep(0.02)

    def clear_away(self, job):
        for pid in [*processes_of(self.folder.resolve()), *([] if job.returncode is not None
                                                            else [job.pid])]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        job.wait()
        job.stderr.close()

    def test_that_is_killed_ends_the_job(self):
        job, pids = self.start(4, K_LONG)
        self.assertEqual(sorted(pids), [0, 1, 2, 3])
        os.kill(pids[2], signal.SIGKILL)
        job.communicate(timeout=K_PATIENCE_S)
        self.assertNotEqual(job.returncode, 0)
        self.wait_until(lambda: not processes_of(self.folder.resolve()))

    def test_that_is_stopped_is_named(self):
        job, pids = self.start(3, K_LONG, "comm.timeout_s=2")
        os.kill(pids[1], signal.SIGSTOP)
        _, errors = job.communicate(timeout=K_PATIENCE_S)
        self.assertEqual(job.returncode, 74, errors)
        self.assertRegex(errors, r"rank [02]: .* with rank 1: .*no sign of life")
        self.assertNotRegex(errors, r"with rank [02]:")
        self.wait_until(lambda: not processes_of(self.folder.resolve()))

    def test_that_comes_back_in_time_is_waited_for(self):
        job, pids = self.start(3, K_LONG.replace("1000000000", "6000"), "comm.timeout_s=20")
        os.kill(pids[1], signal.SIGSTOP)
        time.sleep(1)
        os.kill(pids[1], signal.SIGCONT)
        _, errors = job.communicate(timeout=K_PATIENCE_S)
        self.assertEqual(job.returncode, 0, errors)
        self.assertEqual(self.records()[-1]["step"], 6000)


def all_tests():
    for suite in unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"]):
        for test in suite:
            yield test, ".".join(test.id().split(".")[-2:]).replace(".test_", ".")


def main():
    global program
    if sys.argv[1:] == ["--list"]:
        print("\n".join(sorted(name for _, name in all_tests())))
        return 0
    program = os.path.abspath(sys.argv[1])
    chosen = [test for test, name in all_tests() if name == sys.argv[2]]
    if len(chosen) != 1:
        sys.exit(f"no test is called {sys.argv[2]}")
    result = unittest.TextTestRunner(verbosity=2).run(chosen[0])
    if result.skipped:
        return K_SKIPPED
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
