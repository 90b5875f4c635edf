#!/usr/bin/env python3
"""Run folders, and how runs end before their time. How to run it: cli_case.py."""

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import unittest

import cli_case
from cli_case import (K_LONG, K_MPIEXEC, K_PATIENCE_S, K_PROCESS_BACKENDS, K_TINY, CliCase, needs_mpi,
                      processes_of)

# Fails in its second step, before its first record.
K_RUNAWAY = "optimizer={name: sgd, lr: 1e20}"


class FinalSave(CliCase):
    """A disk that takes longer than comm.timeout_s loses nothing."""

    def check_slow_disk(self, mpi):
        # Pipes in the place of files. The run opens its records after it has removed earlier
        # models, and waits there for a reader.
        out = self.folder / "out"
        out.mkdir()
        os.mkfifo(out / "metrics.jsonl")
        pipe = out / "model.safetensors"
        read = []

        def disk():
            while not (out / "config.yaml").exists():
                time.sleep(0.02)
            os.mkfifo(pipe)
            with open(out / "metrics.jsonl") as records:
                while json.loads(records.readline())["step"] < 8:
                    pass
                time.sleep(3)
                read.append(pipe.read_bytes())
                records.read()

        thread = threading.Thread(target=disk, daemon=True)
        thread.start()
        self.launch(2, "tiny.yaml", "comm.timeout_s=1", "log.report=false", mpi=mpi)
        thread.join()
        size, = struct.unpack("<Q", read[0][:8])
        self.assertIn("hidden1.weight", json.loads(read[0][8:8 + size]))
        self.assertEqual(self.status()["state"], "done")

    def test_may_take_longer_than_the_timeout(self):
        self.check_slow_disk(mpi=False)

    @needs_mpi
    def test_may_take_longer_than_the_timeout_under_mpirun(self):
        self.check_slow_disk(mpi=True)


class Phases(CliCase):
    """A run that goes through several algorithms."""

    phases = ("algorithm={phases: [{until: 3, algorithm: allreduce}, "
              "{until: 6, algorithm: gossip, topology: ring}, {algorithm: local}]}")

    def test_are_told(self):
        done = self.gossamer("train", "tiny.yaml", "--ranks", "2", self.phases)
        self.assertIn("allreduce, gossip on ring from step 3 on, local from step 6 on", done.stderr)
        self.assertIn("after step 3: gossip on ring", done.stderr)
        self.assertIn("after step 6: local", done.stderr)
        done = self.gossamer("train", "tiny.yaml", "--ranks", "2", self.phases, "--dry-run")
        self.assertIn("# rounds of ring", done.stdout)

    def test_are_for_training(self):
        self.write("simulate.yaml", "kind: sgd\nworld_size: 4\n" + self.phases.replace("=", ": "))
        done = self.gossamer("simulate", "simulate.yaml", code=2)
        self.assertIn("simulate.yaml:3:21: algorithm.phases: only gossamer train follows this",
                      done.stderr)

    def test_are_the_same_on_threads_and_processes(self):
        self.launch(2, "tiny.yaml", self.phases)
        for backend in K_PROCESS_BACKENDS:
            self.launch(2, "tiny.yaml", self.phases, f"run.output_dir={backend}", **{backend: True})
            self.assertEqual(*[(self.folder / folder / "model.safetensors").read_bytes()
                               for folder in ["out", backend]])


class RunFolder(CliCase):
    def model(self, folder="out"):
        return (self.folder / folder / "model.safetensors").read_bytes()

    def test_that_holds_a_finished_run_is_refused(self):
        self.launch(2, "tiny.yaml")
        before = self.model()
        for mpi in [False, True] if K_MPIEXEC else [False]:
            for config in ["tiny.yaml", "out/config.yaml"]:
                done = self.launch(2, config, "run.seed=4", mpi=mpi, overwrite=False, code=4)
                self.expect_once("out holds a finished run. To keep it, type run.output_dir=out-2; "
                                 "to replace it, type --overwrite", done.stderr)
                self.assertEqual(self.model(), before)
        done = self.gossamer("train", "tiny.yaml", "run.seed=4", "--overwrite")
        self.expect_once("the run that was in out is replaced", done.stderr)
        self.assertNotEqual(self.model(), before)

    def test_has_a_number_when_nobody_has_named_it(self):
        self.write("plain.yaml", K_TINY.replace(", output_dir: out", ""))
        self.gossamer("train", "plain.yaml")
        before = self.model("runs/plain")
        for number in [2, 3]:
            done = self.gossamer("train", "plain.yaml")
            folder = f"runs/plain-{number}"
            self.expect_once("runs/plain holds a finished run; this run goes into " + folder,
                             done.stderr)
            self.expect_once("everything about this run is in " + folder, done.stdout)
            self.assertEqual(self.model(folder), before)
            self.assertIn(f'output_dir: "{folder}"\n',
                          (self.folder / folder / "config.yaml").read_text())
        self.assertEqual(self.model("runs/plain"), before)

    def test_keeps_what_it_holds_until_the_next_run_has_something(self):
        self.gossamer("train", "tiny.yaml")
        before = {path: path.read_bytes() for path in (self.folder / "out").iterdir()
                  if path.name != ".lock"}
        self.gossamer("train", "tiny.yaml", K_RUNAWAY, "--overwrite", code=76)
        for path, text in before.items():
            self.assertEqual(path.read_bytes(), text, path)

    def test_belongs_to_one_run_at_a_time(self):
        self.write("long.yaml", K_LONG)
        self.start([self.program, "train", "long.yaml"])
        for overwrite in [False, True]:
            done = self.launch(1, "tiny.yaml", overwrite=overwrite, code=4)
            self.assertRegex(done.stderr, r"^out belongs to another run that is under way "
                                          r"\(process \d+ on .+\).* type run.output_dir=out-2\n$")
        # Without a name the next free one is taken.
        self.write("out.yaml", K_TINY.replace("output_dir: out", "threads: 1"))
        self.write("runs/keep", "")
        os.symlink(self.folder / "out", self.folder / "runs" / "out")
        done = self.gossamer("train", "out.yaml")
        self.expect_once("this run goes into runs/out-2", done.stderr)

    def test_of_a_run_that_was_killed_says_so_at_the_next_start(self):
        self.write("long.yaml", K_LONG)
        job = self.start([self.program, "train", "long.yaml"])
        job.kill()
        job.wait()
        self.assertEqual(self.status()["state"], "running")
        # Without --once it goes on as long as the run does.
        self.assertIn("out  died  step ", self.gossamer("watch", "out").stdout)
        # It fails before it has something to write, so the earlier run's files stay.
        done = self.gossamer("train", "tiny.yaml", K_RUNAWAY, code=76)
        self.assertRegex(done.stderr, r"the run that was in out died after step \d+")
        status = self.status()
        self.assertEqual(status["state"], "died")
        self.assertGreater(status["step"], 0)
        self.gossamer("train", "tiny.yaml")
        self.assertEqual(self.status()["state"], "done")


class Signals(CliCase):
    def check_end(self, job, name, code, resume):
        _, errors = job.communicate(timeout=K_PATIENCE_S)
        self.assertEqual(job.returncode, code, errors)
        step = self.status()["step"]
        saved = f"; the checkpoint is saved; to continue, type: {resume}" if code == 75 else ""
        self.expect_once(f"stopped by {name} after step {step} of 1000000000{saved}\n", errors)
        status = self.status()
        self.assertEqual([status["state"], status["exit_code"]], ["stopped", code])
        self.assertEqual(status.get("last_checkpoint"),
                         f"out/checkpoints/step-{step:09}" if code == 75 else None)
        self.assertFalse((self.folder / "out" / "model.safetensors").exists())
        shutil.rmtree(self.folder / "out")

    def test_end_a_run_in_an_orderly_way(self):
        self.write("long.yaml", K_LONG)
        for name, every, code in [("SIGINT", "never", 130), ("SIGTERM", "never", 143),
                                  ("SIGUSR1", "never", 75), ("SIGHUP", "1 minutes", 75),
                                  ("SIGTERM", "1 minutes", 75), ("SIGUSR1", "1 minutes", 75)]:
            with self.subTest(f"{name}, {every}"):
                job = self.start([self.program, "train", "long.yaml", "--ranks", "2",
                                  f"run.checkpoint_every={every}"])
                job.send_signal(getattr(signal, name))
                self.check_end(job, name, code, "gossamer train --resume out --ranks 2")

    def test_end_a_study_in_an_orderly_way(self):
        self.write("study.yaml", """\
base: {data: {name: glyphs, train_size: 64, val_size: 32, batch_size: 4}, log: {every: 2}}
study: {workers: 2, steps: 1000000000, topologies: [ring], optimizers: [sgd], output_dir: study}
""")
        run = "study/ring__sgd__even__seed1"
        job = self.start([self.program, "bench", "topologies", "study.yaml"], folder=run)
        job.terminate()
        _, errors = job.communicate(timeout=K_PATIENCE_S)
        self.assertEqual(job.returncode, 143, errors)
        self.expect_once("was stopped and ends the study", errors)
        self.assertEqual(self.status(run)["state"], "stopped")

    def start_mpi(self, ranks, *arguments):
        self.write("long.yaml", K_LONG)
        job = self.start([K_MPIEXEC, "-n", str(ranks), self.program, "train", "long.yaml", *arguments])
        return job, {rank: pid for pid, rank in processes_of(self.folder.resolve()).items()}

    @needs_mpi
    def test_of_one_rank_end_all(self):
        for name in ["SIGINT", "SIGTERM", "SIGUSR1"]:
            with self.subTest(name):
                job, pids = self.start_mpi(3)
                os.kill(pids[1], getattr(signal, name))
                self.check_end(job, name, 75, "mpirun -n 3 gossamer train --resume out")

    @needs_mpi
    def test_for_mpirun_end_all_ranks(self):
        # Where the machine is busy, mpirun's usual second before it kills may be too short. It also
        # waits as long before it passes the signal on.
        os.environ["OMPI_MCA_odls_base_sigkill_timeout"] = "4"
        self.addCleanup(os.environ.pop, "OMPI_MCA_odls_base_sigkill_timeout")
        # In that time mpirun reads no log lines. A rank that writes more than a pipe holds would be
        # stuck in writing them.
        job, _ = self.start_mpi(2, "log.every=1000")
        job.terminate()
        _, errors = job.communicate(timeout=K_PATIENCE_S)
        # Open MPI's mpirun ends with a code of its own.
        self.assertNotEqual(job.returncode, 0)
        self.assertIn("stopped by SIGTERM after step ", errors)
        self.assertEqual(self.status()["state"], "stopped")

    @needs_mpi
    def test_end_a_rank_at_once_the_second_time(self):
        job, pids = self.start_mpi(2)
        # Rank 0 waits for this one between steps, and cannot end in an orderly way.
        os.kill(pids[1], signal.SIGSTOP)
        os.kill(pids[0], signal.SIGTERM)
        time.sleep(1)
        self.assertIsNone(job.poll())
        # Signals within a second after the first are taken for the same one.
        end = time.monotonic() + K_PATIENCE_S
        while job.poll() is None and time.monotonic() < end:
            try:
                os.kill(pids[0], signal.SIGTERM)
            except ProcessLookupError:
                break
            time.sleep(0.5)
        _, errors = job.communicate(timeout=K_PATIENCE_S)
        self.assertEqual(job.returncode, 143, errors)


@unittest.skipUnless(K_MPIEXEC, "built without MPI")
class OneRank(CliCase):
    """What only one rank cannot do is said with its name, and nobody waits for comm.timeout_s."""

    def two_folders(self, rank_0, rank_1, code):
        """Rank 1 runs in the folder `other`, which has what the test has put there."""
        (self.folder / "other").mkdir(exist_ok=True)
        return self.run_command(
            [K_MPIEXEC, "-n", "1", self.program, *rank_0, ":", "-n", "1", "--wdir",
             str(self.folder / "other"), self.program, *rank_1], code)

    def test_without_its_data_is_named(self):
        self.write("other/tiny.yaml", K_TINY)
        self.write("text", "abc" * 2000)
        train = ["train", "tiny.yaml", "data={name: text, path: text, context: 8}",
                 "model={name: gpt, layers: 1, d_model: 8, heads: 1}"]
        done = self.two_folders(train, train, code=3)
        self.expect_once("on rank 1: data.path: text: ", done.stderr)
        # Files of other sizes: ranks would make other numbers of steps.
        self.write("other/text", "abc" * 3000)
        done = self.two_folders(train, train, code=2)
        self.expect_once("the ranks differ in their data: rank 0 has ", done.stderr)

    def test_without_its_configuration_is_named(self):
        done = self.two_folders(["train", "tiny.yaml"], ["train", "tiny.yaml"], code=2)
        self.expect_once("on rank 1: tiny.yaml", done.stderr)

    def test_with_a_wrong_command_line_is_named(self):
        done = self.two_folders(["train", "tiny.yaml"], ["train", "tiny.yaml", "--rank"], code=2)
        self.expect_once("on rank 1: ", done.stderr)
        self.assertIn("--rank", done.stderr)

    def test_without_its_case_is_named_by_replay(self):
        self.write_case("case")
        replay = ["replay", "case"]
        done = self.two_folders(replay, replay, code=3)
        self.expect_once("on rank 1: ", done.stderr)
        self.expect_once("case.json: cannot be opened", done.stderr)
        self.write_case("other/case", steps=3)
        done = self.two_folders(replay, replay, code=2)
        self.expect_once('rank 1 has "steps: 3"', done.stderr)

    def test_without_a_gpu_is_named_by_replay(self):
        self.write_case("case")
        self.write_case("other/case")
        done = self.two_folders(["replay", "case"], ["replay", "case", "--device", "cuda:99"],
                                code=2)
        self.expect_once("on rank 1: ", done.stderr)


if __name__ == "__main__":
    sys.exit(cli_case.main())
