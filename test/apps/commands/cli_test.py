#!/usr/bin/env python3
"""The program from the shell: what it prints and writes. How to run it: cli_case.py."""

import itertools
import json
import re
import struct
import sys
from pathlib import Path

import cli_case
from cli_case import K_MPIEXEC, K_PROCESS_BACKENDS, CliCase, needs_mpi, without_times

K_FINAL_FIELDS = {
    "kind", "step", "world_size", "accuracy_mean_model", "accuracy_worst_local",
    "accuracy_mean_local", "loss_mean_model", "loss_worst_local", "loss_mean_local",
    "consensus_distance", "bytes_sent_per_step", "wide_differences",
    "train_s", "samples_per_s", "forward_ms", "backward_ms", "wait_ms", "update_ms",
    "parameter_checksums", "rank_step_ms", "rank_forward_ms", "rank_backward_ms", "rank_wait_ms",
    "rank_update_ms"}


class CommandCase(CliCase):
    def check_wrong(self, cases):
        for arguments in cases:
            with self.subTest(arguments):
                done = self.gossamer(*arguments, code=2)
                self.assertNotEqual(done.stderr, "")
                self.assertEqual(done.stdout, "")
        self.assertEqual([path.name for path in self.folder.iterdir()], ["tiny.yaml"])

    def check_help(self, *command):
        """The commands below one."""
        done = self.gossamer(*command, "--help")
        self.assertRegex(done.stdout, r"Examples?:\n  \S*.*gossamer ", command)
        self.assertEqual(done.stderr, "")
        return [line.split()[0] for line in itertools.takewhile(
            lambda line: re.match(r"  \S", line), done.stdout.partition("Subcommands:\n")[2].splitlines())]


class Help(CommandCase):
    def test_has_an_example(self):
        self.assertIn("train", self.check_help())
        self.assertEqual(self.check_help("train"), [])
        self.assertEqual(self.check_help("topology"), ["list", "show", "check"])

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


class CommandLine(CommandCase):
    def test_ends_with_2_when_it_is_wrong(self):
        self.check_wrong([
            [], ["nonsense"], ["--nonsense"], ["train"], ["train", "no_such.yaml"],
            ["train", "tiny.yaml", "--ranks", "two"],
            ["topology", "show", "one-peer-exp", "--world-size", "6"], ["plan", "--world-size", "4"],
            ["bench", "links", "--ranks", "2", "--pairs", "0-2"]])

    def test_says_what_would_be_right(self):
        done = self.gossamer("topology", "show", "ringg", "--world-size", "4", code=2)
        self.assertIn("did you mean ring?", done.stderr)
        done = self.gossamer("trian", code=2)
        self.assertIn("there is no command trian (did you mean train?)", done.stderr)
        done = self.gossamer("topology", "show", "one-peer-exp", "--world-size", "6", code=2)
        self.assertIn("powers of two", done.stderr)
        self.assertIn("ring", done.stderr)


class List(CliCase):
    K_KINDS = ["sections", "topologies", "wrappers", "optimizers", "schedules", "algorithms",
               "codecs", "models", "losses", "data", "backends"]

    def test_is_json_alone_on_stdout(self):
        done = self.gossamer("list", "--json")
        self.assertEqual(done.stderr, "")
        tables = json.loads(done.stdout)
        self.assertEqual(list(tables), self.K_KINDS)
        self.assertEqual(json.loads(self.gossamer("list", "codecs", "--json").stdout),
                         {"codecs": tables["codecs"]})
        for kind, rows in tables.items():
            self.assertTrue(rows, kind)
            for row in rows:
                self.assertTrue(row["name"] and row["summary"], kind)
                for option in row["options"]:
                    self.assertEqual(set(option), {"name", "summary"}, kind)
        self.assertEqual(tables["topologies"],
                         json.loads(self.gossamer("topology", "list", "--json").stdout))
        self.assertIn({"name": "accum_iter", "summary": "steps per update of the moments; "
                       "an integer from 1 to 1000000, default 4"},
                      [option for row in tables["optimizers"] for option in row["options"]])

    def test_is_a_table_within_100_columns(self):
        whole = self.gossamer("list").stdout
        self.assertLessEqual(max(map(len, whole.splitlines())), 100)
        tables = json.loads(self.gossamer("list", "--json").stdout)
        codecs = self.gossamer("list", "codecs").stdout
        self.assertTrue(codecs.startswith("codecs ("), codecs)
        self.assertIn(codecs, whole)
        unwrapped = " ".join(whole.split())
        for rows in tables.values():
            for row in rows:
                self.assertIn(f" {row['name']} {row['summary']}", unwrapped)
                for option in row["options"]:
                    self.assertIn(f" {option['name']}: {option['summary']}", unwrapped)

    def test_prints_the_reference(self):
        reference = Path(__file__).parents[3] / "configs" / "reference.yaml"
        self.assertEqual(self.gossamer("list", "--yaml").stdout, reference.read_text())
        self.assertIn("excludes", self.gossamer("list", "data", "--yaml", code=2).stderr)

    def test_refuses_a_kind_that_there_is_not(self):
        self.assertIn("optimisers (did you mean optimizers?), allowed: sections, ",
                      self.gossamer("list", "optimisers", code=2).stderr)


class Bench(CliCase):
    def test_kernel_prints_one_object(self):
        done = self.gossamer("bench", "kernel", "--optimizer", "accum_adamw", "--bucket-mib", "0.5",
                             "--buckets", "2", "--cycles", "2", "--json")
        report = json.loads(done.stdout)
        self.assertEqual(report["least_bytes_per_element"], 32)
        for key in ["ms", "least_ms", "pass_GBps", "ratio_to_least"]:
            self.assertGreater(report[key], 0)
        self.assertIn("ratio", self.gossamer("bench", "kernel", "--bucket-mib", "0.5", "--buckets",
                                             "2", "--cycles", "1").stdout)
        # Built with CUDA or without: there is no such GPU.
        refusal = self.gossamer("bench", "kernel", "--device", "cuda:99", code=2).stderr
        self.assertRegex(refusal, "cuda:99: this (program was built without CUDA|process sees)")
        self.assertIn("'gpu' is no device",
                      self.gossamer("bench", "kernel", "--device", "gpu", code=2).stderr)

    def test_kernel_times_the_work_for_a_sum(self):
        small = ["bench", "kernel", "--bucket-mib", "0.5", "--buckets", "2", "--cycles", "1", "--codec", "topk"]
        report = json.loads(self.gossamer(*small, "--pass", "feedback", "--per-launch", "2", "--json").stdout)
        # Of 1024 elements 16 go, in 28 bytes, which are written and read.
        self.assertEqual(report["least_bytes_per_element"], 16 + 56 / 1024)
        self.assertEqual(report["per_launch"], 2)
        self.assertIn("encode, 2 buckets", self.gossamer(*small, "--pass", "encode").stdout)
        self.assertIn("the codec topk encodes sums alone", self.gossamer(*small, code=2).stderr)

    def test_step_prints_the_losses_of_the_model(self):
        done = self.gossamer("bench", "step", "--model", "mlp", "--steps", "2", "--warmup", "3",
                             "--losses")
        line, = done.stdout.splitlines()
        report = json.loads(line)
        self.assertEqual([report["world"], report["params"]], [1, 2913290])
        # Of the warm-up, of a step that does not count, and of the timed steps.
        self.assertEqual(len(report["losses"]), 6)
        # As PyTorch has it from the same seed.
        self.assertAlmostEqual(report["losses"][0], 2.300588, places=4)
        self.assertAlmostEqual(report["losses"][3], 2.267618, places=3)
        self.gossamer("bench", "step", "--topology", "ringg", code=2)

    @needs_mpi
    def test_step_takes_turns_under_mpirun(self):
        done = self.mpirun(2, "bench", "step", "--engine", "gossip,compute", "--batch-size", "4",
                           "--steps", "4", "--rounds", "2")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([line.get("engine") for line in lines], ["gossip", "compute", None])
        self.assertIn("gossip/compute", lines[2]["ratios"])

    @needs_mpi
    def test_step_tries_sizes_of_buckets_which_changes_no_loss(self):
        def losses(*arguments):
            done = self.mpirun(2, "bench", "step", "--batch-size", "1", "--steps", "2", "--losses", *arguments)
            return json.loads(done.stdout)["losses"]
        # Buckets of 3 and of 1 MiB are the same ones here, so three sizes have two trials of ten steps.
        self.assertEqual(losses("--bucket-mb", "auto"), losses("--bucket-mb", "25", "--warmup", "60"))

    def test_step_takes_algorithms_with_options(self):
        late = "{name: allreduce, delay: 1}"
        done = self.gossamer("bench", "step", "--ranks", "2", "--engine", f"allreduce,{late}",
                             "--batch-size", "4", "--steps", "2", "--rounds", "1", "--losses")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([line.get("engine") for line in lines], ["allreduce", late, None])
        self.assertIn(f"allreduce/{late}", lines[2]["ratios"])
        # The late mean gradient first shows after the second step.
        self.assertEqual(lines[0]["losses"][0], lines[1]["losses"][0])
        self.assertNotEqual(lines[0]["losses"][1], lines[1]["losses"][1])
        for engine, message in [
                ("gosip", "engine.name: gosip is unknown (did you mean gossip?)"),
                ("{name: allreduce, dely: 1}", "engine.dely: unknown key (did you mean delay?)"),
                ("{name: compute, delay: 1}", "engine.delay: unknown key"),
                ("gossip,", "engine.name: is missing")]:
            done = self.gossamer("bench", "step", "--engine", engine, code=2)
            self.assertIn(message, done.stderr)


class Links(CliCase):
    def check(self, report, kinds, pairs):
        self.assertEqual([key for key in report if key not in ["pairs", "backend"]], kinds)
        self.assertEqual(list(report["pairs"]), pairs)
        for kind in kinds:
            for value in report[kind].values():
                self.assertGreater(value, 0)

    def test_are_measured_between_threads(self):
        quick = ["--bytes", "65536", "--pings", "5", "--transfers", "2"]
        done = self.gossamer("bench", "links", "--ranks", "4", "--local-size", "2", "--json",
                             "--pairs", "0-1,1-2", "-o", "links.json", *quick)
        report = json.loads(done.stdout)
        self.check(report, ["within", "between"], ["0-1", "1-2"])
        self.assertEqual(json.loads((self.folder / "links.json").read_text()), report)
        self.check(json.loads(self.gossamer("bench", "links", "--ranks", "4", "--together",
                                            "--local-size", "1", "--json", *quick).stdout),
                   ["between"], ["0-1", "2-3"])
        self.gossamer("bench", "links", "--ranks", "4", "--together", "--pairs", "0-1,1-2", code=2)
        text = self.gossamer("bench", "links", "--ranks", "2", *quick).stdout
        self.assertIn("within a node, median", text)

    @needs_mpi
    def test_are_measured_under_mpirun(self):
        done = self.mpirun(2, "bench", "links", "--json", "--pings", "5", "--transfers", "2",
                           "--local-size", "1")
        line, = done.stdout.splitlines()
        self.check(json.loads(line), ["between"], ["0-1"])
        self.expect_once("is no pair of this world",
                         self.mpirun(2, "bench", "links", "--pairs", "0-7", code=2).stderr)


K_NODES = "topology={name: hierarchical, leaders: complete}"


class TrainCase(CliCase):
    def check_alike(self, ranks, *change):
        """A run on threads, and the same in processes of each backend. MPI adds in an order of its own."""
        self.launch(ranks, "tiny.yaml", *change)
        expected = [without_times(record) for record in self.records()]
        for backend in K_PROCESS_BACKENDS:
            self.launch(ranks, "tiny.yaml", *change, f"run.output_dir={backend}", **{backend: True})
            records = [without_times(record) for record in self.records(backend)]
            if ranks == 2 or backend == "tcp":
                self.assertEqual(records, expected, backend)
            for record, threads in zip(records, expected, strict=True):
                self.expect_close(record, threads)

    def expect_close(self, record, expected):
        self.assertEqual(list(record), list(expected))
        for key, value in record.items():
            if isinstance(value, float):
                self.assertAlmostEqual(value, expected[key], places=5, msg=key)
            else:
                self.assertEqual(value, expected[key], key)

    def check_learns(self, *changes):
        self.launch(2, "tiny.yaml", *changes)
        final = self.records()[-1]
        self.assertEqual(final["kind"], "final")
        self.assertLess(final["loss_mean_model"], 3)


class Train(TrainCase):
    def check_folder(self, ranks):
        out = self.folder / "out"
        self.assertEqual(sorted(path.name for path in out.iterdir()),
                         [".lock", "config.yaml", "environment.json", "metrics.jsonl", "model.safetensors",
                          "model_best.safetensors", "report.html", "status.json"])
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
        self.assertEqual(header["hidden1.weight"]["shape"], [16, 784])

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

    def test_runs_on_three_threads(self):
        self.check_runs(3, mpi=False)

    @needs_mpi
    def test_runs_on_three_processes(self):
        self.check_runs(3, mpi=True)

    def test_exchanges_alike_on_threads_and_processes(self):
        self.check_alike(2, "algorithm=gossip")

    def test_sums_alike_on_threads_and_processes(self):
        self.check_alike(2, "algorithm={name: allreduce, delay: 1}", "comm.codec=int8")

    def test_mixes_alike_on_threads_and_processes_in_irregular_rounds(self):
        self.write("irregular.yaml", "world_size: 6\ndirected: true\nedges: [[0, 1], [1, 2], "
                                     "[2, 3], [3, 4], [4, 5], [5, 0], [0, 2], [0, 3], [0, 4]]\n")
        self.check_alike(6, "topology={name: from-file, path: irregular.yaml}")

    def test_shards_alike_on_threads_and_processes(self):
        self.check_alike(4, K_NODES, "comm.local_size=2",
                         "algorithm={name: node_gossip, shard: optimizer}")

    def test_learns_with_plug_ins(self):
        self.check_learns("model={name: cnn, width: 2}", "topology={every: {base: ring, period: 2}}",
                          "optimizer.name=accum_adam", "lr_schedule.name=cosine_with_warmup",
                          "buckets.size_mb=0.001", "data.dirichlet_alpha=0.5")

    def test_keeps_quiet_when_told(self):
        done = self.launch(2, "tiny.yaml", "log.level=off")
        self.assertEqual(done.stderr, "")
        self.assertEqual(self.gossamer("train", "tiny.yaml", "log.level=off", "--overwrite").stderr,
                         "")

    def test_warns_where_uneven_labels_cost_accuracy(self):
        muon = "optimizer={name: muon, groups: [{vectors: true, optimizer: adamw}]}"
        for data in [["data.dirichlet_alpha=0.5"], []]:
            done = self.launch(2, "tiny.yaml", muon, *data, "log.level=warning")
            self.assertEqual("makes its own gradients orthogonal" in done.stderr, bool(data), done.stderr)

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


class WideTrain(TrainCase):
    """The combinations of which Train has one of each kind."""

    def check_all_alike(self, ranks, changes):
        for change in changes:
            with self.subTest(change):
                self.check_alike(ranks, *change)

    def test_two_ranks_are_alike_on_threads_and_processes(self):
        self.check_all_alike(2, [
            ["algorithm=allreduce"], ["algorithm=local"],
            ["algorithm={name: gossip, share_moments: 3}", "optimizer.name=adamw"],
            ["comm.codec=int8", "run.steps=40"], ["algorithm=allreduce", "comm.codec=bf16"],
            ["algorithm={name: outer, kind: diloco, every: 2, momentum: 0, lr: 1}", "comm.codec=topk"],
            ["algorithm={name: outer, kind: noloco, every: 2}", "comm.codec=int4", "run.steps=40"],
            ["algorithm=choco", "topology.name=static-ring"]])

    def test_six_ranks_are_alike_on_threads_and_processes(self):
        self.check_all_alike(6, [
            [K_NODES, "comm.local_size=2"],
            ["topology={name: hierarchical, leaders: static-ring, leaders_every: 2}", "comm.local_size=2"],
            ["topology={alternate: [static-exp, {name: base-k, k: 2}]}"],
            [K_NODES, "comm.local_size=2", "algorithm=node_gossip"],
            # Some shards of small buckets are empty in nodes of three.
            [K_NODES, "comm.local_size=3", "algorithm=node_gossip", "buckets.size_mb=0.0001"],
            [K_NODES, "comm.local_size=3", "buckets.size_mb=0.0001",
             "algorithm={name: node_gossip, shard: optimizer}"]])


class WideCommands(CommandCase):
    K_PLAN = ["plan", "--model-bytes", "1e6"]

    def test_have_examples(self):
        waiting = [[]]
        seen = []
        while waiting:
            command = waiting.pop()
            seen.append(" ".join(command))
            waiting += [[*command, name] for name in self.check_help(*command)]
        for command in ["train", "secret", "topology", "list", "topology list", "topology show",
                        "topology check",
                        "simulate", "simulate consensus", "simulate sgd", "plan", "replay", "bench",
                        "bench kernel", "bench step", "bench links", "bench topologies"]:
            self.assertIn(command, seen)

    def test_end_with_2_when_they_are_wrong(self):
        self.check_wrong([
            ["train", "tiny.yaml", "--ranks", "0"], ["topology"], ["topology", "show", "ring"],
            ["topology", "show", "ringg", "--world-size", "4"],
            ["topology", "show", "ring", "--world-size", "0"],
            ["topology", "show", "ring", "--world-size", "-3"],
            ["topology", "show", "ring", "--world-size", "6", "--local-world-size", "4"],
            ["plan"], ["plan", "--model-bytes", "1e6"], ["bench", "links", "--ranks", "1"],
            ["bench", "links", "--ranks", "2", "--pings", "1", "--bytes", "1024", "-o", "no/such/folder"],
            ["plan", "--world-size", "4", "--model-bytes", "0"],
            ["plan", "--world-size", "4", "--model-bytes", "-1e6"],
            *([*self.K_PLAN, *change] for change in [
                ["--world-size", "0"], ["--world-size", "-4"], ["--world-size", "4097"],
                ["--world-size", "4", "--local-world-size", "3"],
                ["--world-size", "4", "--links", "no_such.json"]])])


if __name__ == "__main__":
    sys.exit(cli_case.main())
