#!/usr/bin/env python3
"""The topology laboratory from the shell: topology, simulate, bench topologies and replay. How
to run it: cli_case.py."""

import json
import sys

import cli_case
from cli_case import CliCase, needs_mpi, without_times


class Topology(CliCase):

    def test_show_is_json_alone_on_stdout(self):
        for name in ["ring", "one-peer-exp", "directed-one-peer-exp", "hierarchical"]:
            done = self.gossamer("topology", "show", name, "--world-size", "8",
                                 "--local-world-size", "2", "--json")
            report = json.loads(done.stdout)
            self.assertEqual(done.stderr, "")
            self.assertEqual(list(report), [
                "name", "world_size", "local_world_size", "period", "rounds", "spectral_gap",
                "exact_after", "directed", "consensus_rate", "rounds_to_1e-3",
                "rounds_to_1e-3_estimated", "degree", "model_bytes", "bytes_per_step",
                "max_bytes_per_step"])
            self.assertEqual([report["name"], report["world_size"], report["local_world_size"]],
                             [name, 8, 2])
            for entry in report["rounds"]:
                self.check_round(entry, report["directed"])

    def check_round(self, entry, directed):
        if "edges" in entry:
            ranks = [rank for edge in entry["edges"] for rank in edge["ranks"]]
            self.assertEqual(sorted(ranks), list(range(8)))
            for edge in entry["edges"]:
                self.assertAlmostEqual(edge["weight"], 1 / len(edge["ranks"]))
            return
        self.assertEqual(entry["directed"], directed)
        for end in ["from", "to"]:
            for rank in range(8):
                weights = [arc["weight"] for arc in entry["arcs"] if arc[end] == rank]
                self.assertAlmostEqual(sum(weights), 1.0)

    def test_show_can_be_read_back(self):
        for name, *options in [["base-k", "k=2"], ["hierarchical"], ["{alternate: [ring, {name: static-ring}]}"]]:
            world = ["--world-size", "8", "--local-world-size", "2", "--json"]
            shown = json.loads(
                self.gossamer("topology", "show", name, *options, *world).stdout)
            path = self.write("shown.json", json.dumps(shown))
            self.gossamer("topology", "check", path)
            again = json.loads(
                self.gossamer("topology", "show", "from-file", f"path={path}", *world).stdout)
            for key in ["rounds", "period", "directed", "exact_after", "degree"]:
                if key != "degree" or name != "hierarchical":
                    self.assertEqual(again[key], shown[key], f"{name}: {key}")

    def test_check_names_rule_rank_and_round(self):
        good = self.write("good.yaml", "world_size: 3\nrounds: [{edges: [[0, 1]]}, "
                                       "{edges: [[1, 2]]}]\n")
        self.assertIn("all rules hold", self.gossamer("topology", "check", good).stdout)
        bad = self.write("bad.yaml", "world_size: 3\nrounds: [{edges: [[0, 1]]}, "
                                     "{edges: [[1, 2], [0, 1]]}]\n")
        done = self.gossamer("topology", "check", bad, code=1)
        self.assertIn("the rule `partition` is broken in round 1: Rank 1 stands twice",
                      done.stdout)
        report = json.loads(self.gossamer("topology", "check", bad, "--json", code=1).stdout)
        self.assertEqual([report["holds"], report["rule"], report["rank"], report["round"]],
                         [False, "partition", 1, 1])
        leaky = self.write("leaky.yaml", "world_size: 2\nrounds: [{arcs: [[0, 1, 0.5], "
                                         "[1, 0, 0.5], [0, 0, 0.6]]}]\n")
        self.assertIn("sums to 1.1, not to 1",
                      self.gossamer("topology", "check", leaky, code=1).stdout)
        self.assertIn("sums to 1.1, not to 1",
                      self.gossamer("topology", "show", "from-file", "--world-size", "2",
                                    f"path={leaky}", code=2).stderr)
        self.gossamer("topology", "check", "nowhere.yaml", code=2)
        broken = self.write("broken.yaml", "world_size: 3\nrounds: [{edgs: [[0, 1]]}]\n")
        self.assertIn("did you mean edges?",
                      self.gossamer("topology", "check", broken, code=2).stderr)

    def test_show_refuses_what_would_fill_the_memory(self):
        done = self.gossamer("topology", "show", "ring", "--world-size", "999999", "--json",
                             code=2)
        self.assertIn("too many to write down, allowed: --rounds", done.stderr)
        self.gossamer("topology", "show", "ring", "--world-size", "1000001", code=2)

    def test_show_draws(self):
        show = ["topology", "show", "base-k", "--world-size", "10", "k=2", "--plot"]
        self.gossamer(*show, "rounds.svg")
        self.assertTrue((self.folder / "rounds.svg").read_text().startswith("<svg "))
        self.gossamer(*show, "rounds.png", code=2)
        self.gossamer(*show, "no/such/folder/rounds.svg", code=2)

    def test_text_names_everything_too(self):
        self.assertRegex(self.gossamer("topology", "list").stdout, "\n  one-peer-exp +pairs ")
        shown = self.gossamer("topology", "show", "one_peer_exp", "--world-size", "4").stdout
        self.assertIn("round 0: 0-1 2-3\n", shown)
        self.assertIn("round 1: 0-2 1-3\n", shown)


class Simulate(CliCase):
    def test_consensus_meets_the_theory(self):
        done = self.gossamer("simulate", "consensus", "--topology", "ring", "--world-size", "8",
                             "--rounds", "120", "--dim", "4", "--json")
        report = json.loads(done.stdout)
        self.assertEqual(done.stderr, "")
        self.assertAlmostEqual(report["measured_factor_per_period"],
                               1 - report["spectral_gap"], places=3)
        self.assertEqual(report["points"][-1]["round"], 120)
        shown = self.gossamer("simulate", "consensus", "--topology", "{name: base-k, k: 2}",
                              "--world-size", "7", "--rounds", "12").stdout
        self.assertIn("the mean on all ranks, to 1e-12, after", shown)

    def test_a_file_can_be_changed_from_the_command_line(self):
        path = self.write("simulate.yaml", "kind: sgd\nworld_size: 4\nrounds: 50\ndim: 3\n")
        one = json.loads(self.gossamer("simulate", path, "--json", "--threads", "1").stdout)
        two = json.loads(self.gossamer("simulate", path, "--json", "--threads", "2").stdout)
        self.assertEqual(one, two)
        torus = json.loads(self.gossamer("simulate", path, "topology=torus", "world_size=6",
                                         "problem.heterogeneity=0", "--json").stdout)
        self.assertEqual([torus["topology"], torus["world_size"]], ["torus", 6])
        self.assertIn("over the last quarter", self.gossamer("simulate", path).stdout)

    def test_bad_input_exits_with_2(self):
        for arguments in [[], ["consensus", "--world-size", "-5"], ["nowhere.yaml"],
                          ["sgd", "--world-size", "4", "--problem", "{name: quadratic, nois: 1}"]]:
            done = self.gossamer("simulate", *arguments, code=2)
            self.assertTrue(done.stderr)


class Study(CliCase):
    """Four runs of four steps: ring and all-reduce, two seeds."""

    def setUp(self):
        super().setUp()
        self.write("study.yaml", """\
base:
  model: {name: mlp, hidden: 8}
  data: {name: glyphs, train_size: 64, val_size: 32, batch_size: 4}
  log: {every: 2, consensus_every: 2, eval_every: 2}
study:
  workers: 2
  steps: 4
  topologies: [allreduce, ring]
  optimizers: [{name: sgd, label: plain}]
  seeds: [1, 2]
""")

    def study(self, *arguments, code=0):
        return self.gossamer("bench", "topologies", "study.yaml", *arguments, code=code)

    def test_writes_runs_results_and_a_table(self):
        done = self.study()
        self.assertIn("4 runs with 2 workers into runs/study; 0 of them are finished", done.stderr)
        self.expect_once("run 4/4  ring__plain__even__seed2  done: accuracy ", done.stderr)
        self.assertRegex(done.stdout, r"\n  even +allreduce +plain +2 +\d+\.\d\d \u00b1 \d")
        self.expect_once("gossamer report runs/study/*/", done.stdout)
        out = self.folder / "runs" / "study"
        self.assertEqual(sorted(path.name for path in out.iterdir()),
                         ["allreduce__plain__even__seed1", "allreduce__plain__even__seed2",
                          "results.csv", "ring__plain__even__seed1", "ring__plain__even__seed2",
                          "table.md"])
        lines = (out / "results.csv").read_text().splitlines()
        self.assertEqual([line.split(",")[:7] for line in lines[1:3]],
                         [[f"{name}__plain__even__seed1", name, "plain", "", "1", "2", "4"]
                          for name in ["allreduce", "ring"]])
        self.assertEqual((out / "table.md").read_text().count("\n"), 4)

    def test_is_what_train_does_with_the_same_configuration(self):
        self.study()
        run = "runs/study/ring__plain__even__seed2"
        self.launch(2, f"{run}/config.yaml", "run.output_dir=alone")
        self.assertEqual([without_times(record) for record in self.records("alone")],
                         [without_times(record) for record in self.records(run)])

    def test_ends_with_the_run_that_fails_and_keeps_the_others(self):
        runaway = "study.optimizers=[{name: sgd, label: plain}, {name: sgd, lr: 1e20, label: wild}]"
        done = self.study(runaway, code=76)
        self.expect_once("run 2/8, allreduce__wild__even__seed1, has failed and ends the study",
                         done.stderr)
        self.assertEqual(done.stdout, "")
        out = self.folder / "runs" / "study"
        self.assertEqual((out / "results.csv").read_text().count("\n"), 2)
        status = json.loads((out / "allreduce__wild__even__seed1" / "status.json").read_text())
        self.assertEqual(status["state"], "failed")
        self.assertEqual(json.loads(self.study("--json").stdout)["kept"], 1)

    @needs_mpi
    def test_runs_under_mpirun(self):
        threads = json.loads(self.study("--json").stdout)
        done = self.mpirun(2, "bench", "topologies", "study.yaml", "--json",
                           "study.output_dir=mpi")
        report = json.loads(done.stdout)
        self.assertEqual([without_times(run) for run in report["runs"]],
                         [without_times(run) for run in threads["runs"]])
        again = self.mpirun(2, "bench", "topologies", "study.yaml", "--json",
                            "study.output_dir=mpi")
        self.assertEqual(json.loads(again.stdout)["kept"], 4)
        self.expect_once("study.workers=3, or 2 ranks",
                         self.mpirun(3, "bench", "topologies", "study.yaml", code=2).stderr)


class Replay(CliCase):
    def test_repeats_a_record(self):
        self.write_case()
        for options in [[], ["--backend", "threads", "--simd", "baseline", "--threads", "2"],
                        ["--bucket-bytes", "1"]]:
            done = self.gossamer("replay", "case", "--json", *options)
            report = json.loads(done.stdout)
            self.assertEqual([report["passed"], report["largest_error"]], [True, 0])
            self.assertEqual(report["buckets"]["compared"], "--bucket-bytes" not in options)
        self.assertIn("  holds (tolerance 2e-06)\n", self.gossamer("replay", "case").stdout)

    def test_says_where_it_differs(self):
        self.write_case(last=1e-3)
        done = self.gossamer("replay", "case", "--json", code=1)
        report = json.loads(done.stdout)
        self.assertFalse(report["passed"])
        self.assertEqual({key: report["steps"]["at"][key]
                          for key in ["step", "rank", "parameter", "element"]},
                         {"step": 2, "rank": 1, "parameter": "w", "element": 1})
        self.assertIn("w, element 1, of rank 1 after step 2: 1.25 instead of",
                      self.gossamer("replay", "case", code=1).stdout)
        self.gossamer("replay", "case", "--tolerance", "0.01")

    def test_ends_with_3_when_the_case_cannot_be_read(self):
        self.assertIn("case.json: cannot be opened",
                      self.gossamer("replay", "nothing", code=3).stderr)
        self.write_case()
        (self.folder / "case" / "grads.npy").write_bytes(b"torn")
        self.assertIn("grads.npy", self.gossamer("replay", "case", code=3).stderr)

    @needs_mpi
    def test_runs_under_mpirun(self):
        self.write_case()
        report = json.loads(self.mpirun(2, "replay", "case", "--json").stdout)
        self.assertEqual([report["passed"], report["backend"]], [True, "mpi"])
        self.expect_once("has 2 ranks, this world has 3",
                         self.mpirun(3, "replay", "case", code=2).stderr)


if __name__ == "__main__":
    sys.exit(cli_case.main())
