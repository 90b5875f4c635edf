#!/usr/bin/env python3
"""Checkpoints from the shell: runs that are killed and resumed, and the command checkpoint. How to
run it: cli_case.py."""

import hashlib
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import unittest

import cli_case
from cli_case import K_PATIENCE_S, CliCase, needs_mpi, processes_of

try:
    import safetensors.numpy
except ImportError:
    safetensors = None

K_RUN = """\
run: {seed: 3, steps: 6000, output_dir: out, checkpoint_every: 500}
model: {name: mlp, hidden: 16}
data: {name: glyphs, train_size: 256, val_size: 64, batch_size: 8}
log: {every: 70, eval_every: 2000, level: warning}
"""
K_SHORT_RUN = K_RUN.replace("steps: 6000", "steps: 2000")


class Checkpoints(CliCase):
    def hash_of(self, folder):
        return self.gossamer("checkpoint", "hash", folder).stdout.split()[0]

    def records(self, folder):
        lines = (self.folder / folder / "metrics.jsonl").read_text().splitlines()
        return [(record["kind"], record["step"], record.get("loss"),
                 record.get("loss_mean_model"), record.get("parameter_checksums"))
                for record in map(json.loads, lines)]

    def test_let_a_killed_run_go_on_as_if_nothing_had_happened(self):
        self.write("run.yaml", K_RUN)
        self.gossamer("train", "run.yaml", "--ranks", "2", "run.output_dir=whole")
        dice = random.Random(5)
        for _ in range(4):
            job = subprocess.Popen(
                [self.program, "train", "run.yaml", "--ranks", "2", "--resume", "auto"],
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL)
            time.sleep(dice.uniform(0.2, 0.7))
            job.kill()
            job.wait()
            newest = sorted((self.folder / "out" / "checkpoints").glob("step-*"))
            if newest:
                self.gossamer("checkpoint", "verify", str(newest[-1]))
        self.gossamer("train", "run.yaml", "--ranks", "2", "--resume", "auto")
        self.assertEqual(self.hash_of("out"), self.hash_of("whole"))
        self.assertEqual(self.records("out"), self.records("whole"))
        self.assertEqual((self.folder / "out" / "model.safetensors").read_bytes(),
                         (self.folder / "whole" / "model.safetensors").read_bytes())
        self.assertEqual(sorted(path.name for path in (self.folder / "out" / "checkpoints").iterdir()),
                         ["step-000005000", "step-000005500", "step-000006000"])

    def check_asynchronous(self, mpi):
        change = ["algorithm=async_gossip", "topology={name: static-exp}", "run.checkpoint_every=10"]
        self.write("run.yaml", K_RUN.replace("steps: 6000", "steps: 30"))
        self.launch(3, "run.yaml", *change, mpi=mpi)
        self.launch(3, "run.yaml", *change, "run.steps=60", "--resume", "auto", mpi=mpi,
                    overwrite=False)
        self.launch(2, "run.yaml", *change, "run.steps=90", "--resume", "auto", "--reshape",
                    "average", mpi=mpi, overwrite=False)
        records = [json.loads(line) for line in
                   (self.folder / "out" / "metrics.jsonl").read_text().splitlines()]
        steps = [record["step"] for record in records if record["kind"] == "step"]
        self.assertEqual(steps, sorted(set(steps)))
        self.assertEqual(steps[-1], 90)
        self.assertEqual(records[-1]["world_size"], 2)
        self.gossamer("checkpoint", "verify", "out")

    def test_of_asynchronous_ranks_are_continued(self):
        self.check_asynchronous(mpi=False)

    @needs_mpi
    def test_of_asynchronous_ranks_are_continued_under_mpirun(self):
        self.check_asynchronous(mpi=True)

    @needs_mpi
    def test_of_a_preempted_job_are_continued_under_mpirun(self):
        self.write("run.yaml", K_SHORT_RUN)
        self.mpirun(3, "train", "run.yaml", "run.output_dir=whole")
        job = self.start([cli_case.K_MPIEXEC, "-n", "3", self.program, "train", "run.yaml"])
        pids = {rank: pid for pid, rank in processes_of(self.folder.resolve()).items()}
        os.kill(pids[2], signal.SIGUSR1)
        _, errors = job.communicate(timeout=K_PATIENCE_S)
        self.assertEqual(job.returncode, 75, errors)
        self.mpirun(3, "train", "--resume", "out")
        self.assertEqual(self.hash_of("out"), self.hash_of("whole"))
        self.assertEqual(self.records("out"), self.records("whole"))

    def test_let_a_slurm_job_submit_itself_again(self):
        """A fake scheduler: srun ends the first job with SIGTERM, scontrol notes its arguments."""
        self.write("run.yaml", K_SHORT_RUN)
        self.gossamer("train", "run.yaml", "run.output_dir=whole")
        bin_folder = self.folder / "bin"
        bin_folder.mkdir()
        for name, text in [
                ("srun", '"$@" & job=$!\n'
                         'if [ ! -e queue ]; then\n'
                         '  until grep -q running out/status.json 2>/dev/null; do sleep 0.05; done\n'
                         '  kill -TERM $job\n'
                         'fi\n'
                         'wait $job\n'),
                ("scontrol", 'echo "$@" >>queue\n')]:
            (bin_folder / name).write_text("#!/bin/sh\n" + text)
            (bin_folder / name).chmod(0o755)
        script = pathlib.Path(__file__).parents[3] / "scripts" / "launch" / "slurm.sbatch"
        environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}",
                       "GOSSAMER": self.program, "SLURM_JOB_ID": "17"}
        codes = [subprocess.run(["bash", script, "run.yaml"], cwd=self.folder, env=environment,
                                capture_output=True, timeout=K_PATIENCE_S).returncode
                 for _ in range(2)]
        self.assertEqual(codes, [75, 0])
        self.assertEqual((self.folder / "queue").read_text(), "requeue 17\n")
        self.assertEqual(self.hash_of("out"), self.hash_of("whole"))

    def test_go_on_in_a_folder_whose_name_is_no_utf8(self):
        self.write("run.yaml", K_RUN)
        name = os.fsdecode(b"caf\xe9")
        self.gossamer("train", "run.yaml", f"run.output_dir={name}", "run.steps=8",
                      "run.checkpoint_every=4")
        self.gossamer("train", "--resume", name, "run.steps=12", "--timeline", f"{name}.json")
        status = json.loads((self.folder / name / "status.json").read_text())
        self.assertEqual((status["state"], status["step"]), ("done", 12))
        self.assertTrue((self.folder / f"{name}.json").exists())

    def test_are_found_where_the_folder_has_no_name(self):
        """A finished trial has the first folder, and an unfinished run of another kind the last."""
        self.write("run.yaml", K_RUN.replace(", output_dir: out", ""))
        self.gossamer("train", "run.yaml", "run.steps=4", "run.checkpoint_every=never")
        auto = [self.program, "train", "run.yaml", "--resume", "auto", "run.steps=1000000",
                "log.level=info"]

        def start_and_stop(folder, *more):
            job = self.start([*auto, *more], folder=folder)
            job.terminate()
            _, errors = job.communicate(timeout=K_PATIENCE_S)
            self.assertEqual(job.returncode, 75, errors)
            self.expect_once(f"to continue, type: gossamer train --resume {folder}\n", errors)
            return errors

        start_and_stop("runs/run-2")
        errors = start_and_stop("runs/run-3", "optimizer.lr=0.5")
        self.expect_once("runs/run-2 holds an unfinished run of another configuration: optimizer.lr "
                         "was 0.001 and is 0.5; to continue that run, type --resume runs/run-2",
                         errors)
        (self.folder / "runs/run-2/status.json").unlink()
        errors = start_and_stop("runs/run-2")
        self.assertIn("continues from runs/run-2/checkpoints/", errors)
        self.assertIn("output_dir: \"runs/run-2\"",
                      (self.folder / "runs/run-2/config.yaml").read_text())
        self.assertFalse((self.folder / "runs/run-4").exists())
        error = self.run_command([*auto, "--ranks", "2"], code=4).stderr
        self.assertIn("is of 1 ranks, and this run has 2", error)

    def test_hold_the_best_model(self):
        """A run goes on from step 20 in another way, and its best model is that of step 20."""
        self.write("run.yaml", K_RUN.replace("steps: 6000", "steps: 20").replace("500", "20")
                   .replace("eval_every: 2000", "eval_every: 10"))
        self.gossamer("train", "run.yaml", "run.output_dir=short")
        self.gossamer("train", "run.yaml", "run.steps=40")
        best = [self.folder / folder / "model_best.safetensors" for folder in ("short", "out")]
        self.assertNotEqual(best[0].read_bytes(), best[1].read_bytes())
        shutil.rmtree(self.folder / "out" / "checkpoints" / "step-000000040")
        self.gossamer("train", "--resume", "out", "run.steps=40", "optimizer.lr=0")
        self.assertEqual(best[0].read_bytes(), best[1].read_bytes())

    def test_come_before_the_last_evaluation(self):
        """A signal in the evaluation ends the run, which then goes on with the evaluation."""
        self.write("run.yaml", K_RUN.replace("steps: 6000", "steps: 2").replace("64", "8000")
                   .replace("hidden: 16", "hidden: 1024"))
        job = self.start([self.program, "train", "run.yaml"],
                         until=lambda: (self.folder / "out" / "model.safetensors").exists())
        newest = self.folder / "out" / "checkpoints" / "step-000000002" / "manifest.json"
        self.wait_until(newest.exists)
        job.terminate()
        _, errors = job.communicate(timeout=K_PATIENCE_S)
        self.assertEqual(job.returncode, 75, errors)
        self.assertIn("stopped by SIGTERM after step 2 of 2; the checkpoint is saved", errors)
        self.assertNotIn('"eval"', (self.folder / "out" / "metrics.jsonl").read_text())
        self.gossamer("train", "--resume", "out", "data.val_size=100")
        self.assertEqual(self.status()["state"], "done")

    def test_protect_a_run_that_is_not_finished(self):
        self.write("run.yaml", K_RUN)
        job = self.start([self.program, "train", "run.yaml", "run.steps=1000000"])
        job.terminate()
        job.communicate(timeout=K_PATIENCE_S)
        error = self.gossamer("train", "run.yaml", code=4).stderr
        self.assertIn("holds checkpoints of a run that has not finished", error)
        self.assertIn("to continue it, type --resume out", error)
        error = self.gossamer("train", "--resume", "out", "--ranks", "2", code=4).stderr
        self.assertIn("is of 1 ranks, and this run has 2", error)
        error = self.gossamer("train", "--resume", "out", "topology.name=complete", code=4).stderr
        self.assertIn("was saved with topology.name = ring, and this run has complete", error)
        self.assertIn("holds no checkpoint",
                      self.gossamer("train", "run.yaml", "--resume", "nowhere", code=4).stderr)
        self.gossamer("train", "run.yaml", "--overwrite", "run.steps=30")

    def test_that_cannot_be_saved_cost_a_warning(self):
        self.write("run.yaml", K_RUN.replace("steps: 6000", "steps: 1000"))

        def limit_files():
            # As on a full disk: the model fits, the state with its three moments does not.
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

        done = subprocess.run([self.program, "train", "run.yaml"], cwd=self.folder, text=True,
                              capture_output=True, timeout=K_PATIENCE_S, preexec_fn=limit_files)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("a checkpoint could not be saved: rank 0: "), 2)
        self.assertIn("File too large", done.stderr)
        self.assertEqual(list((self.folder / "out" / "checkpoints").iterdir()), [])
        self.assertTrue((self.folder / "out" / "model.safetensors").exists())

    def test_are_shown_compared_and_exported(self):
        self.write("run.yaml", K_RUN.replace("steps: 6000", "steps: 1000"))
        self.gossamer("train", "run.yaml", "--ranks", "2")
        shown = json.loads(self.gossamer("checkpoint", "show", "out", "--json").stdout)
        self.assertEqual([shown["step"], shown["world_size"]], [1000, 2])
        names = {tensor["name"] for tensor in shown["tensors_of_rank_0"]}
        self.assertLessEqual({"output.weight", "output.weight/m", "output.weight/updates",
                              "run/steps", "train/samples"}, names)
        self.assertIn("optimizer.name: accum_adamw",
                      self.gossamer("checkpoint", "show", "out").stdout)
        checkpoints = self.folder / "out" / "checkpoints"
        first, last = "out/checkpoints/step-000000500", "out/checkpoints/step-000001000"
        self.assertIn("the state of all ranks is the same",
                      self.gossamer("checkpoint", "diff", last, "out").stdout)
        self.assertIn("tensors are not the same",
                      self.gossamer("checkpoint", "diff", first, last, code=1).stdout)
        self.gossamer("checkpoint", "export", "out", "-o", "mean.safetensors")
        self.assertEqual((self.folder / "mean.safetensors").read_bytes(),
                         (checkpoints / "step-000001000" / "model.safetensors").read_bytes())
        self.gossamer("checkpoint", "export", "out", "-o", "one.safetensors", "--rank", "1")
        self.gossamer("checkpoint", "export", "out", "-o", "x", "--rank", "2", code=2)
        torn = self.folder / last / "rank-00001.safetensors"
        torn.write_bytes(torn.read_bytes()[:-1] + b"x")
        self.assertIn("its SHA-256 is not the manifest's",
                      self.gossamer("checkpoint", "verify", last, code=4).stderr)
        done = self.gossamer("checkpoint", "verify", "out")
        self.assertIn("step-000000500: 3 files", done.stdout)
        self.assertIn("this checkpoint is left out", done.stderr)
        self.assertIn("is neither a checkpoint",
                      self.gossamer("checkpoint", "verify", "nothing", code=4).stderr)

    @unittest.skipUnless(safetensors, "the Python package safetensors is not installed")
    def test_are_files_that_python_reads_and_writes(self):
        self.write("run.yaml", K_RUN.replace("steps: 6000", "steps: 500"))
        self.gossamer("train", "run.yaml", "model={name: cnn, width: 3}")
        folder = self.folder / "out" / "checkpoints" / "step-000000500"
        state = safetensors.numpy.load_file(folder / "rank-00000.safetensors")
        self.assertEqual(int(state["run/steps"]), 500)
        model = safetensors.numpy.load_file(folder / "model.safetensors")
        for name, values in model.items():
            self.assertEqual(values.size, state[name].size)
        safetensors.numpy.save_file(model, folder / "model.safetensors", {"format": "np"})
        manifest = json.loads((folder / "manifest.json").read_text())
        written = (folder / "model.safetensors").read_bytes()
        manifest["files"]["model.safetensors"] = {
            "bytes": len(written), "sha256": hashlib.sha256(written).hexdigest()}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        self.gossamer("checkpoint", "verify", "out")
        self.gossamer("checkpoint", "export", "out", "-o", "again.safetensors")
        again = safetensors.numpy.load_file(self.folder / "again.safetensors")
        self.assertEqual(sorted(again), sorted(model))
        for name, values in model.items():
            self.assertEqual(again[name].tobytes(), values.tobytes())


if __name__ == "__main__":
    sys.exit(cli_case.main())
