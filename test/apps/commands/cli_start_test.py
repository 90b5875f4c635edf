#!/usr/bin/env python3
"""Runs that start without MPI, on one machine. How to run it: cli_case.py."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import cli_case
from cli_case import K_LONG, K_PATIENCE_S, CliCase, heed_signals, processes_of, without_times

K_SECRETS = [digit * 32 for digit in "01"]


class StartCase(CliCase):
    def pids(self):
        """rank -> process. The parent of processes is none."""
        return {rank: pid for pid, rank in processes_of(self.folder.resolve()).items()}

    def expect_trained(self, ranks, folder="out"):
        self.assertEqual(self.status(folder)["state"], "done")
        self.assertEqual(self.records(folder)[-1]["world_size"], ranks)


class Processes(StartCase):
    def start_processes(self, ranks, *overrides):
        self.write("long.yaml", K_LONG)
        job = self.start([self.program, "train", "long.yaml", "--processes", str(ranks),
                          *overrides])
        self.assertEqual(sorted(self.pids()), list(range(ranks)))
        return job

    def expect_end(self, job, code):
        _, errors = job.communicate(timeout=K_PATIENCE_S)
        self.assertEqual(job.returncode, code, errors)
        self.wait_until(lambda: not self.pids())
        return errors

    def test_train_together_and_repeat_themselves(self):
        for folder in ["one", "two"]:
            self.gossamer("train", "tiny.yaml", "--processes", "3", f"run.output_dir={folder}")
            self.expect_trained(3, folder)
        one, two = ([without_times(record) for record in self.records(folder)]
                    for folder in ["one", "two"])
        self.assertEqual(one, two)

    def test_may_be_one_alone(self):
        self.gossamer("train", "tiny.yaml", "--processes", "1")
        self.expect_trained(1)

    def test_end_with_the_code_of_the_rank_that_fails(self):
        done = self.gossamer("train", "tiny.yaml", "--processes", "2",
                             "optimizer={name: sgd, lr: 1e20}", code=76)
        self.assertRegex(done.stderr, r"rank [01], step 2: the loss is -?(nan|inf)")

    def test_say_once_what_is_wrong_with_the_configuration(self):
        done = self.gossamer("train", "tiny.yaml", "--processes", "3", "optimizer.lr=-1", code=2)
        self.expect_once("optimizer.lr", done.stderr)

    def test_end_when_one_is_killed(self):
        job = self.start_processes(3)
        os.kill(self.pids()[1], signal.SIGKILL)
        self.assertIn("signal 9 (Killed) has ended rank 1", self.expect_end(job, 128 + 9))
        self.assertEqual(self.status()["state"], "failed")

    def test_say_in_the_folder_that_the_one_that_writes_it_is_killed(self):
        job = self.start_processes(3)
        os.kill(self.pids()[0], signal.SIGKILL)
        self.assertIn("signal 9 (Killed) has ended rank 0", self.expect_end(job, 128 + 9))
        status = self.status()
        self.assertEqual((status["state"], status["exit_code"]), ("failed", 74))
        self.assertIn("rank 0", status["message"])

    def test_are_killed_when_they_do_not_end(self):
        job = self.start_processes(2, "comm.timeout_s=1000")
        pids = self.pids()
        os.kill(pids[0], signal.SIGSTOP)
        os.kill(pids[1], signal.SIGKILL)
        self.assertIn("they are killed: 0", self.expect_end(job, 128 + 9))

    def test_end_with_the_program_that_has_started_them(self):
        job = self.start_processes(3)
        job.kill()
        job.wait()
        self.wait_until(lambda: not self.pids())

    def test_end_at_once_when_one_gets_a_signal_before_it_listens(self):
        job = self.start([self.program, "train", "tiny.yaml", "--processes", "3"], until=self.pids)
        pids = self.pids()
        os.kill(pids[0], signal.SIGTERM)
        _, errors = job.communicate(timeout=K_PATIENCE_S)
        self.assertIn(job.returncode, (75, 143), errors)
        self.assertNotIn("are killed", errors)
        # A rank that listened already stops the run after a step.
        self.assertRegex(errors, "stopped by (signal 15 .* before the ranks began to train|SIGTERM after step)")

    def test_end_without_a_word_when_a_bench_gets_a_signal(self):
        job = self.start([self.program, "bench", "step", "--processes", "3", "--model", "gpt",
                          "--steps", "100000"], until=lambda: len(self.pids()) == 3)
        job.send_signal(signal.SIGINT)
        self.assertEqual(self.expect_end(job, 128 + signal.SIGINT), "")

    def test_save_a_checkpoint_when_the_program_gets_a_signal(self):
        for number in [signal.SIGTERM, signal.SIGINT]:
            job = self.start_processes(2, "--overwrite")
            job.send_signal(number)
            errors = self.expect_end(job, 75)
            self.expect_once("to continue, type: gossamer train --resume out --processes 2",
                             errors)
        step = self.status()["step"]
        self.gossamer("train", "--resume", "out", "--processes", "2", f"run.steps={step + 5}")
        self.expect_trained(2)


class Commands(StartCase):
    """Every command that has ranks runs in processes as it does on threads."""

    K_STEP = ["bench", "step", "--engine", "allreduce", "--batch-size", "4", "--steps", "2",
              "--losses"]
    K_LINKS = ["bench", "links", "--json", "--local-size", "1", "--bytes", "65536", "--pings", "5",
               "--transfers", "2", "-o", "links.json"]
    K_STUDY = """\
base:
  model: {name: mlp, hidden: 16}
  data: {name: glyphs, train_size: 256, val_size: 64, batch_size: 8}
study: {workers: 2, steps: 4, topologies: [allreduce, ring], optimizers: [sgd]}
"""

    def report(self, *arguments):
        return json.loads(self.gossamer(*arguments).stdout)

    def test_bench_step(self):
        report = self.report(*self.K_STEP, "--processes", "2")
        threads = self.report(*self.K_STEP, "--ranks", "2")
        self.assertEqual([report["world"], report["losses"]], [2, threads["losses"]])

    def test_bench_links(self):
        for more in [[], ["--streams", "2"], ["--streams", "auto"]]:
            report = self.report(*self.K_LINKS, "--processes", "2", *more)
            self.assertEqual(list(report["pairs"]), ["0-1"])
            self.assertGreater(report["between"]["bandwidth_bytes_per_s"], 0)
            self.assertEqual(json.loads((self.folder / "links.json").read_text()), report)

    def test_bench_topologies(self):
        self.write("study.yaml", self.K_STUDY)
        study = ["bench", "topologies", "study.yaml", "--json"]
        threads = self.report(*study)
        report = self.report(*study, "--processes", "2", "study.output_dir=processes")
        self.assertEqual([without_times(run) for run in report["runs"]],
                         [without_times(run) for run in threads["runs"]])
        # The same study goes on with ranks that start otherwise.
        self.assertEqual(self.report(*study, "study.output_dir=processes")["kept"], 2)

    def test_replay(self):
        self.write_case()
        report = self.report("replay", "case", "--json", "--processes", "2")
        self.assertEqual([report["passed"], report["backend"]], [True, "tcp"])
        done = self.gossamer("replay", "case", "--processes", "3", code=2)
        self.expect_once("has 2 ranks, this world has 3", done.stderr)


class RendezvousCase(StartCase):
    def start_rank(self, place, *arguments, command=("train", "tiny.yaml"), world_size=3,
                   **variables):
        job = subprocess.Popen([self.program, *command, "--rendezvous", place,
                                "--world-size", str(world_size), *arguments], cwd=self.folder,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, preexec_fn=heed_signals,
                               env={**os.environ, "GOSSAMER_SECRET": K_SECRETS[0], **variables})
        self.addCleanup(job.stdout.close)
        self.addCleanup(job.wait)
        self.addCleanup(job.kill)
        return job

    def outputs(self, jobs, code=0):
        outputs = [job.communicate(timeout=K_PATIENCE_S)[0] for job in jobs]
        self.assertEqual([job.returncode for job in jobs], [code] * len(jobs), outputs)
        return outputs

    def free_place(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return f"127.0.0.1:{free.getsockname()[1]}"


class Rendezvous(RendezvousCase):
    def test_deals_ranks_in_the_order_of_arrival(self):
        place = self.free_place()
        outputs = self.outputs([self.start_rank(place) for _ in range(3)])
        self.expect_trained(3)
        self.expect_once("everything about this run", "".join(outputs))

    def test_takes_the_ranks_that_are_given(self):
        place = self.free_place()
        jobs = [self.start_rank(place, "--rank", str(rank)) for rank in [2, 0, 1]]
        outputs = self.outputs(jobs)
        self.expect_trained(3)
        self.assertIn("everything about this run", outputs[1])

    def test_needs_no_secret_on_one_machine(self):
        place = self.free_place()
        self.outputs([self.start_rank(place, world_size=2, GOSSAMER_SECRET="") for _ in range(2)])
        self.expect_trained(2)

    def test_is_for_benches_too(self):
        place = self.free_place()
        bench = ["bench", "links", "--json", "--bytes", "65536", "--pings", "5", "--transfers", "2"]
        outputs = self.outputs([self.start_rank(place, command=bench, world_size=2)
                                for _ in range(2)])
        self.assertEqual(list(json.loads("".join(outputs))["pairs"]), ["0-1"])

    def test_names_the_rank_that_does_not_come(self):
        place = self.free_place()
        jobs = [self.start_rank(place, "--rank", str(rank), "comm.timeout_s=3")
                for rank in [0, 2]]
        for output in self.outputs(jobs, code=74):
            self.assertIn("with rank 1: they have not come within 3 s", output)

    def test_admits_nobody_with_another_secret(self):
        place = self.free_place()
        jobs = [self.start_rank(place, "--rank", str(rank), "comm.timeout_s=3", world_size=2,
                                GOSSAMER_SECRET=secret)
                for rank, secret in enumerate(K_SECRETS)]
        self.outputs(jobs, code=74)
        self.assertEqual(self.status(), {})


class Folder(RendezvousCase):
    def test_is_where_ranks_meet(self):
        (self.folder / "meet").mkdir()
        self.outputs([self.start_rank("file:meet") for _ in range(3)])
        self.expect_trained(3)
        self.assertEqual(list((self.folder / "meet").iterdir()), [])

    def test_that_is_missing_is_named(self):
        output, = self.outputs([self.start_rank("file:meet", "comm.timeout_s=3")], code=74)
        self.assertIn("meet is a folder", output)


class Torchrun(StartCase):
    # The project's own Python may have LibTorch alone. scripts/test_python.sh makes the other one.
    K_PYTHONS = [sys.executable,
                 pathlib.Path(__file__).parents[3] / "build" / "python-venv" / "bin" / "python"]

    def setUp(self):
        super().setUp()
        self.python = next((python for python in self.K_PYTHONS if os.path.exists(python) and
                            self.run_command([python, "-c", "import torch.distributed.run"],
                                             code=None).returncode == 0), None)
        if self.python is None:
            self.skipTest("needs torchrun")

    def command(self, *arguments):
        return [self.python, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node",
                "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", *arguments]

    def test_starts_ranks(self):
        done = self.run_command(self.command("--no-python", self.program, "train", "tiny.yaml"),
                                variables={"GOSSAMER_SECRET": K_SECRETS[0]})
        self.expect_trained(2)
        self.expect_once("everything about this run", done.stdout)

    def test_starts_ranks_again_after_a_failure(self):
        # The first attempt leaves a mark, and then one of its ranks fails.
        self.write("attempt.sh", """\
if [[ ! -e failed && $RANK == 1 ]]; then
  touch failed
  exit 3
fi
exec "$@"
""")
        self.run_command(self.command("--max-restarts", "1", "--no-python", "bash", "attempt.sh",
                                      self.program, "train", "tiny.yaml", "comm.timeout_s=60"),
                         variables={"GOSSAMER_SECRET": K_SECRETS[0]})
        self.assertTrue((self.folder / "failed").exists())
        self.expect_trained(2)


if __name__ == "__main__":
    sys.exit(cli_case.main())
