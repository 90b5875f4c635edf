#!/usr/bin/env python3
"""How the program ends when something is wrong. How to run it: cli_case.py."""

import json
import os
import signal
import struct
import sys
import time
import unittest

import cli_case
from cli_case import K_LONG, K_MPIEXEC, K_PATIENCE_S, K_TINY, CliCase, needs_mpi, processes_of


class Errors(CliCase):
    """Every rank leaves, one says why."""

    # The text, the command line, and where and under which key the mistake is.
    K_CASES = [
        (K_TINY, ["optimizer.lr=-1"], "command line: optimizer.lr: -1"),
        (K_TINY + "optimizer:\n  lr: fast\n", [], "bad.yaml:6:7: optimizer.lr: fast"),
        (K_TINY + "lr_schedule: [\n", [], "bad.yaml:"),
        (K_TINY, ["comm.codec=bf16", "topology.name=directed-one-peer-exp"],
         "command line: comm.codec: "),
        (K_TINY, ["comm.local_size=2"], "comm.local_size: 2"),
    ]

    def check_errors(self, cases, mpi):
        for text, overrides, place in cases:
            with self.subTest(place):
                self.write("bad.yaml", text)
                done = self.launch(3, "bad.yaml", *overrides, mpi=mpi, code=2)
                self.expect_once(place, done.stderr)
                self.assertEqual(done.stdout, "")
                self.assertFalse((self.folder / "out").exists())

    def test_in_the_configuration_end_with_2(self):
        self.check_errors(self.K_CASES, mpi=False)

    @needs_mpi
    def test_in_the_configuration_are_said_once_under_mpirun(self):
        self.check_errors(self.K_CASES[:2], mpi=True)

    @needs_mpi
    def test_of_a_wrong_launch_are_said_once(self):
        done = self.mpirun(2, "train", "tiny.yaml", "--ranks", "3", code=2)
        self.expect_once("--ranks 3", done.stderr)
        done = self.mpirun(2, "train", "tiny.yaml", "comm.backend=threads", code=2)
        self.expect_once("command line: comm.backend: ", done.stderr)
        done = self.gossamer("train", "tiny.yaml", "comm.backend=mpi", "--ranks", "3", code=2)
        self.expect_once("--ranks 3", done.stderr)

    def test_of_processes_that_do_not_meet_are_said(self):
        """As under srun without PMIx, and under the mpirun of another MPI."""
        step = ["env", "SLURM_STEP_NUM_TASKS=2"]
        done = self.run_command([*step, self.program, "train", "tiny.yaml"], code=2)
        self.expect_once("SLURM_STEP_NUM_TASKS says that 2 processes were started", done.stderr)
        self.assertFalse((self.folder / "out").exists())
        self.run_command([*step, self.program, "--version"])
        if not K_MPIEXEC:
            return
        done = self.run_command(["env", "PMI_RANK=0", "PMI_SIZE=2", self.program, "train",
                                 "tiny.yaml"], code=2)
        self.expect_once("PMI_SIZE says that 2 processes were started", done.stderr)
        # mpirun may run in a step of srun.
        self.run_command([*step[:-1], "SLURM_STEP_NUM_TASKS=3", K_MPIEXEC, "-n", "2", self.program,
                          "train", "tiny.yaml", "run.steps=2"])

    def two_programs(self, other, code=2):
        """Rank 1 has a configuration of its own."""
        self.write("other.yaml", other)
        one = [self.program, "train", "tiny.yaml", "log.level=off"]
        two = [self.program, "train", "other.yaml", "log.level=off"]
        return self.run_command([K_MPIEXEC, "-n", "1", *one, ":", "-n", "1", *two], code)

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
        for mpi in [False, True] if K_MPIEXEC else [False]:
            self.write_idx(20 * 64)
            self.launch(2, "tiny.yaml", data, mpi=mpi)
            self.write_idx(20 * 64 - 5)
            done = self.launch(2, "tiny.yaml", data, "run.output_dir=no", mpi=mpi, code=3)
            self.expect_once("data/train-images-idx3-ubyte: byte ", done.stderr)
            self.assertFalse((self.folder / "no").exists())
        self.gossamer("train", "tiny.yaml", "data={name: idx, path: nowhere}", "run.output_dir=no",
                      code=3)

    def test_of_the_run_folder_end_with_4(self):
        self.write("taken", "a file")
        for mpi in [False, True] if K_MPIEXEC else [False]:
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

    def test_of_a_diverging_run_without_records_end_with_76(self):
        # The losses of an mlp at this learning rate are large, and finite.
        done = self.launch(2, "tiny.yaml", "optimizer={name: sgd, lr: 100}", "train.diverged=stop",
                           "log={every: 0, consensus_every: 0, eval_every: 0}", code=76)
        self.assertRegex(done.stderr, r"after step 8 the loss is \S+e\+\d+, and it began with 2")


K_ASYNCHRONOUS = ["algorithm=async_gossip", "topology={name: static-exp}"]


@unittest.skipUnless(K_MPIEXEC and os.path.isdir("/proc/self"), "needs MPI and /proc")
class LostRank(CliCase):
    def start_ranks(self, ranks, text, *overrides):
        """The job, once it trains, and the process of each rank."""
        self.write("long.yaml", text)
        job = self.start([K_MPIEXEC, "-n", str(ranks), self.program, "train", "long.yaml",
                          *overrides])
        return job, {rank: pid for pid, rank in processes_of(self.folder.resolve()).items()}

    def test_that_is_killed_ends_the_job(self):
        job, pids = self.start_ranks(4, K_LONG)
        self.assertEqual(sorted(pids), [0, 1, 2, 3])
        os.kill(pids[2], signal.SIGKILL)
        job.communicate(timeout=K_PATIENCE_S)
        self.assertNotEqual(job.returncode, 0)
        self.wait_until(lambda: not processes_of(self.folder.resolve()))
        # A survivor has said so, or the next start does. That run has nothing to write itself.
        self.gossamer("train", "tiny.yaml", "optimizer={name: sgd, lr: 1e20}", code=76)
        self.assertIn(self.status()["state"], ["died", "failed"])

    def check_stopped(self, *overrides):
        job, pids = self.start_ranks(3, K_LONG, "comm.timeout_s=2", *overrides)
        os.kill(pids[1], signal.SIGSTOP)
        _, errors = job.communicate(timeout=K_PATIENCE_S)
        self.assertEqual(job.returncode, 74, errors)
        self.assertRegex(errors, r"rank [02]: .* with rank 1: .*no sign of life")
        self.assertNotRegex(errors, r"with rank [02]:")
        self.wait_until(lambda: not processes_of(self.folder.resolve()))

    def check_paused(self, *overrides):
        job, pids = self.start_ranks(3, K_LONG.replace("1000000000", "4000"), "comm.timeout_s=20",
                                     *overrides)
        os.kill(pids[1], signal.SIGSTOP)
        time.sleep(1)
        os.kill(pids[1], signal.SIGCONT)
        _, errors = job.communicate(timeout=K_PATIENCE_S)
        self.assertEqual(job.returncode, 0, errors)
        self.assertEqual(self.records()[-1]["step"], 4000)

    def test_that_is_stopped_is_named(self):
        self.check_stopped()

    def test_of_asynchronous_ranks_is_named(self):
        self.check_stopped(*K_ASYNCHRONOUS)

    def test_that_comes_back_in_time_is_waited_for(self):
        self.check_paused()

    def test_of_asynchronous_ranks_comes_back_in_time(self):
        self.check_paused(*K_ASYNCHRONOUS)


if __name__ == "__main__":
    sys.exit(cli_case.main())
