#!/usr/bin/env python3
"""Records of runs from the shell: reports, tables, TensorBoard, watching, and runs that continue with
other ranks. How to run it: cli_case.py."""

import csv
import io
import json
import sys
import unittest

import cli_case
from cli_case import CliCase

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    EventAccumulator = None


class Records(CliCase):
    def records(self, folder, kind):
        lines = (self.folder / folder / "metrics.jsonl").read_text().splitlines()
        return [record for record in map(json.loads, lines) if record["kind"] == kind]

    @unittest.skipUnless(EventAccumulator, "the Python package tensorboard is not installed")
    def test_are_read_by_tensorboard(self):
        run = ["train", "tiny.yaml", "--ranks", "2", "log.tensorboard=true",
               "run.checkpoint_every=2", "train.ema=0.9"]
        self.gossamer(*run)
        self.gossamer(*run, "run.steps=12", "--resume", "auto")
        events = EventAccumulator(str(self.folder / "out"))
        events.Reload()
        steps = self.records("out", "step")
        self.assertEqual([step["step"] for step in steps], [2, 4, 6, 8, 10, 12])
        for tag, key in [("train/loss", "loss"), ("train/lr", "lr")]:
            read = events.Scalars(tag)
            self.assertEqual([event.step for event in read], [step["step"] for step in steps])
            for event, step in zip(read, steps):
                self.assertAlmostEqual(event.value, step[key], places=5)
        self.assertEqual([event.step for event in events.Scalars("rank_loss/1")],
                         [step["step"] for step in steps])
        for tag in ["eval/accuracy_mean_model", "eval/loss_ema", "eval/consensus_distance"]:
            # The first run saved its last checkpoint before its evaluation, so the longer run makes
            # that evaluation once more.
            self.assertEqual([event.step for event in events.Scalars(tag)], [4, 8, 8, 12], tag)

    def test_of_an_end_are_kept_by_a_run_that_goes_on(self):
        """An evaluation at the end of a run is one of the longer run, too."""
        run = ["train", "tiny.yaml", "--ranks", "2", "run.checkpoint_every=4"]
        self.gossamer(*run, "run.steps=16", "run.output_dir=whole")
        self.gossamer(*run)
        self.gossamer(*run, "run.steps=16", "--resume", "auto")

        def evaluations(folder):
            return [(record["step"], record["loss_mean_model"])
                    for record in self.records(folder, "eval")]
        self.assertEqual(evaluations("out"), evaluations("whole"))
        self.assertEqual([step for step, _ in evaluations("out")], [4, 8, 12, 16])

    def test_of_a_run_out_of_patience_stay(self):
        run = ["train", "tiny.yaml", "optimizer.lr=3", "optimizer.name=sgd", "train.patience=1",
               "train.nonfinite=skip", "run.steps=80", "run.checkpoint_every=4"]
        done = self.gossamer(*run)
        self.assertIn("(train.patience)", done.stderr)
        steps = [record["step"] for record in self.records("out", "eval")]
        self.assertLess(steps[-1], 80)
        self.assertEqual(len(set(steps)), len(steps))
        self.gossamer(*run, "--resume", "auto")
        self.assertEqual([record["step"] for record in self.records("out", "eval")], steps)

    def test_become_a_page_and_a_table(self):
        self.gossamer("train", "tiny.yaml", "--ranks", "2", "run.output_dir=a")
        self.gossamer("train", "tiny.yaml", "run.output_dir=b", "log.report=false",
                      "algorithm=local")
        page = (self.folder / "a" / "report.html").read_text()
        self.assertIn("Time of a step on every rank: a", page)
        self.assertNotIn("<script", page)
        self.assertFalse((self.folder / "b" / "report.html").exists())
        self.assertIn("c.html: open it", self.gossamer("report", "a", "b", "-o", "c.html").stdout)
        self.assertIn("Differences of the configurations",
                      (self.folder / "c.html").read_text())
        self.gossamer("report", "b")
        self.assertTrue((self.folder / "b" / "report.html").exists())
        table = list(csv.DictReader(io.StringIO(
            self.gossamer("report", "a", "b", "--csv", "-").stdout)))
        steps = [row for row in table if row["run"] == "a" and row["kind"] == "step"]
        self.assertEqual([float(row["loss"]) for row in steps],
                         [record["loss"] for record in self.records("a", "step")])
        self.assertIn("is not the folder of a run",
                      self.gossamer("report", "nothing", code=4).stderr)
        environment = json.loads((self.folder / "a" / "environment.json").read_text())
        self.assertEqual(environment["world_size"], 2)
        self.assertEqual(environment["hosts"][0]["ranks"], [0, 1])
        self.assertIn("LibTorch", environment["versions"])

    def test_are_watched_while_they_grow(self):
        self.write("long.yaml", cli_case.K_LONG)
        self.start([self.program, "train", "long.yaml", "--ranks", "3"])
        view = self.gossamer("watch", "out", "--once").stdout
        self.assertIn("out  running  step ", view)
        self.assertRegex(view, r"rank +loss +samples/s +waiting")
        self.assertEqual(len([line for line in view.splitlines() if line[:6].strip().isdigit()]), 3)

    def test_end_with_the_run(self):
        self.gossamer("train", "tiny.yaml", "--ranks", "2")
        self.assertIn("out  done  step 8 of 8", self.gossamer("watch", "out").stdout)
        status = self.status()
        self.assertEqual([status["exit_code"], status["faults"]], [0, []])
        done = self.gossamer("train", "tiny.yaml", "run.output_dir=wild", "optimizer.lr=1e30",
                             code=76)
        self.assertIn("the loss is", done.stderr)
        status = self.status("wild")
        self.assertEqual([status["state"], status["exit_code"]], ["failed", 76])
        self.gossamer("train", "tiny.yaml", "run.output_dir=skipped", "optimizer.lr=1e30",
                      "train.nonfinite=skip")
        self.assertIn("steps were left out", self.status("skipped")["faults"][0])


class Reshape(CliCase):
    def test_continues_with_other_ranks_and_another_topology(self):
        self.gossamer("train", "tiny.yaml", "--ranks", "3", "run.checkpoint_every=4",
                      "topology.name=ring")
        refused = self.gossamer("train", "--resume", "out", "--ranks", "2", "run.steps=16", code=4)
        self.assertIn("--reshape average", refused.stderr)
        refused = self.gossamer("train", "--resume", "out", "--ranks", "3",
                                "topology.name=complete", "run.steps=16", code=4)
        self.assertIn("--reshape average", refused.stderr)
        self.gossamer("train", "--resume", "out", "--reshape", "average", "--ranks", "2",
                      "topology.name=one-peer-exp", "run.steps=16")
        lines = (self.folder / "out" / "metrics.jsonl").read_text().splitlines()
        steps = [record["step"] for record in map(json.loads, lines) if record["kind"] == "step"]
        self.assertEqual(steps, list(range(2, 17, 2)))
        self.gossamer("train", "tiny.yaml", "--reshape", "average", code=2)


if __name__ == "__main__":
    sys.exit(cli_case.main())
