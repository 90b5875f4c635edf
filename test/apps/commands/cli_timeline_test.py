#!/usr/bin/env python3
"""The timeline of all ranks from the shell. How to run it: cli_case.py."""

import json
import sys

import cli_case
from cli_case import CliCase, needs_mpi

# Fails in its second step.
K_RUNAWAY = "optimizer={name: sgd, lr: 1e20}"


class Timeline(CliCase):
    def read(self, name="trace.json"):
        return json.loads((self.folder / name).read_text())

    def spans(self, trace, kind):
        return [event for event in trace["traceEvents"]
                if event["ph"] == "X" and event["cat"] == kind]

    def check(self, trace, ranks, steps):
        """Every rank has its spans of these steps, and what a step does lies inside it."""
        self.assertEqual(trace["otherData"]["dropped_spans"], 0)
        for rank in range(ranks):
            own = [span for span in self.spans(trace, "step") if span["pid"] == rank]
            self.assertEqual([span["name"] for span in own], [f"step {k}" for k in steps])
            bounds = {span["args"]["step"]: (span["ts"], span["ts"] + span["dur"]) for span in own}
            for kind in ["forward", "backward", "update"]:
                inner = [span for span in self.spans(trace, kind) if span["pid"] == rank]
                self.assertEqual(sorted({span["args"]["step"] for span in inner}), list(steps))
                for span in inner:
                    begin, end = bounds[span["args"]["step"]]
                    self.assertGreaterEqual(span["ts"], begin - 0.001)
                    self.assertLessEqual(span["ts"] + span["dur"], end + 0.001)
            exchanges = [span for span in self.spans(trace, "exchange") if span["pid"] == rank]
            self.assertEqual(len(exchanges), len(list(steps)))
            for span in exchanges:
                self.assertEqual(span["args"]["peers"], [1 - rank])
                self.assertGreater(span["args"]["bytes"], 0)

    def check_train(self, mpi):
        self.launch(2, "tiny.yaml", "run.output_dir=plain", mpi=mpi)
        done = self.launch(2, "tiny.yaml", "--timeline", "new/trace.json", mpi=mpi)
        # A run of 8 steps: the second half.
        self.expect_once("the timeline of 4 steps is in new/trace.json: open it in "
                         "https://ui.perfetto.dev", done.stderr)
        self.check(self.read("new/trace.json"), 2, range(5, 9))
        for name in ["model.safetensors"]:
            self.assertEqual((self.folder / "plain" / name).read_bytes(),
                             (self.folder / "out" / name).read_bytes())

    def test_of_a_training_has_all_ranks(self):
        self.check_train(mpi=False)

    @needs_mpi
    def test_of_a_training_has_all_ranks_under_mpirun(self):
        self.check_train(mpi=True)

    def test_becomes_a_picture(self):
        self.launch(2, "tiny.yaml", "--timeline", "trace.json")
        self.assertIn("Timeline of a few steps: out", (self.folder / "out/report.html").read_text())
        done = self.gossamer("report", "trace.json")
        self.expect_once("trace.svg: open it in a browser", done.stdout)
        picture = (self.folder / "trace.svg").read_text()
        for part in [">rank 0<", ">rank 1<", ">step 6<", ">step 8<", ">exchange<"]:
            self.assertIn(part, picture)
        done = self.gossamer("report", "tiny.yaml", "-o", "x.svg", code=4)
        self.expect_once("tiny.yaml is not a timeline", done.stderr)

    def test_shows_what_lies_between_steps(self):
        """Whatever takes a millisecond of the computing thread has a span."""
        self.launch(2, "tiny.yaml", "--timeline", "trace.json", "log.every=2", "log.eval_every=3",
                    "log.consensus_every=2", "run.checkpoint_every=3",
                    "algorithm={phases: [{until: 7, algorithm: gossip}, {algorithm: allreduce}]}")
        trace = self.read()
        for kind in ["evaluation", "checkpoint", "consensus", "records", "switch"]:
            ranks = {span["pid"] for span in self.spans(trace, kind)}
            self.assertEqual(ranks, {0, 1}, kind)
        self.gossamer("report", "trace.json")
        self.assertIn(">checkpoint<", (self.folder / "trace.svg").read_text())

    def test_has_the_steps_that_were_asked_for(self):
        self.launch(2, "tiny.yaml", "--timeline", "trace.json", "--timeline-steps", "1:3")
        self.check(self.read(), 2, range(2, 4))
        # The same by the configuration; a run that goes on counts anew, and its steps keep their
        # numbers.
        run = ["tiny.yaml", "log.timeline=trace.json", "log.timeline_steps=[0, 2]",
               "run.checkpoint_every=4"]
        self.launch(2, *run)
        self.check(self.read(), 2, range(1, 3))
        self.launch(2, *run, "run.steps=12", "--resume", "auto", overwrite=False)
        self.check(self.read(), 2, range(9, 11))

    def test_of_the_step_bench_has_all_ranks(self):
        bench = ["bench", "step", "--model", "mlp", "--batch-size", "2", "--steps", "4", "--warmup",
                 "3", "--ranks", "2", "--timeline", "trace.json"]
        done = self.gossamer(*bench, "--timeline-steps", "4:6")
        self.assertIn("the timeline of 2 steps is in trace.json", json.loads(done.stdout)["timeline"])
        self.check(self.read(), 2, range(5, 7))
        # Of several engines the first one is recorded.
        lines = self.gossamer(*bench, "--engine", "gossip,gossip", "--rounds", "2").stdout.splitlines()
        self.assertEqual(["timeline" in json.loads(line) for line in lines], [True, False, False])
        # Turns of three steps, and the warm-up.
        self.check(self.read(), 2, range(4, 8))

    def test_that_cannot_be_is_refused(self):
        for steps in ["3:3", "5", "-1:3", "a:b"]:
            for command in [["train", "tiny.yaml"], ["bench", "step"]]:
                done = self.gossamer(*command, f"--timeline-steps={steps}", code=2)
                self.assertIn("allowed: BEGIN:END", done.stderr)
        done = self.gossamer("train", "tiny.yaml", "log.timeline_steps=[4, 2]", code=2)
        self.assertIn("log.timeline_steps: holds nothing", done.stderr)
        done = self.gossamer("train", "tiny.yaml", "log.timeline_steps=[2, 4]", code=2)
        self.assertIn("log.timeline_steps: is given without log.timeline", done.stderr)
        done = self.gossamer("bench", "step", "--timeline-steps", "2:4", code=2)
        self.assertIn("--timeline-steps requires --timeline", done.stderr)

    def test_that_cannot_be_written_does_not_end_the_run(self):
        self.write("file", "")
        done = self.launch(2, "tiny.yaml", "--timeline", "file/trace.json")
        self.expect_once("the timeline could not be written: ", done.stderr)
        self.assertEqual(self.status()["state"], "done")
        done = self.launch(2, "tiny.yaml", "--timeline", "trace.json", "--timeline-steps", "8:9")
        self.expect_once("there is no timeline: the run has ended after 8 steps", done.stderr)
        self.assertFalse((self.folder / "trace.json").exists())

    @needs_mpi
    def test_of_a_run_that_fails_is_not_there_under_mpirun(self):
        self.launch(2, "tiny.yaml", K_RUNAWAY, "--timeline", "trace.json", "--timeline-steps", "0:9",
                    mpi=True, code=None)
        self.assertFalse((self.folder / "trace.json").exists())


if __name__ == "__main__":
    sys.exit(cli_case.main())
