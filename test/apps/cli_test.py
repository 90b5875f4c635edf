#!/usr/bin/env python3
"""The program from the shell: what it prints and writes. How to run it: cli_case.py."""

import json
import re
import struct
import sys

import cli_case
from cli_case import K_MPIEXEC, CliCase, needs_mpi, without_times

K_FINAL_FIELDS = {
    "kind", "step", "world_size", "accuracy_mean_model", "accuracy_worst_local",
    "accuracy_mean_local", "loss_mean_model", "consensus_distance", "bytes_sent_per_step",
    "train_s", "samples_per_s", "forward_ms", "backward_ms", "wait_ms", "update_ms",
    "parameter_checksums"}


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
        self.expect_once("--help", self.mpirun(2, "nonsense", code=2).stderr)


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
    def test_runs_on_one_process(self):
        self.check_runs(1, mpi=True)

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
        for mpi in [False, True] if K_MPIEXEC else [False]:
            done = self.launch(2, "tiny.yaml", "--dry-run", "buckets.size_mb=0.01", mpi=mpi)
            self.expect_once("  batch_size: 8\n", done.stdout)
            self.expect_once("  round 0: 0-1\n", done.stdout)
            self.expect_once("  bucket 0: ", done.stdout)
            self.expect_once("output.bias", done.stdout)
            self.expect_once("8 steps would follow", done.stdout)
            self.assertEqual(done.stderr.replace("\n", ""), "")
            self.assertEqual(sorted(self.folder.rglob("*")), before)


if __name__ == "__main__":
    sys.exit(cli_case.main())
