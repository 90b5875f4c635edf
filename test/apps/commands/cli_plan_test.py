#!/usr/bin/env python3
"""gossamer plan from the shell. How to run it: cli_case.py."""

import json
import pathlib
import re
import sys

import cli_case
from cli_case import CliCase

# The project.
K_SOURCE = pathlib.Path(__file__).resolve().parents[3]


class PlanCase(CliCase):
    K_WORLD = ["plan", "--model-bytes", "12e6", "--world-size", "4", "--local-world-size", "2"]

    def rows(self, *arguments):
        return json.loads(self.gossamer(*arguments, "--json").stdout)["rows"]

    def expect_to_train(self, rows):
        for row in rows.values():
            self.write("plan.yaml", cli_case.K_TINY + row["yaml"])
            self.launch(4, "plan.yaml", "--dry-run")

    def far_rows(self, *arguments):
        return self.rows("plan", *arguments)

    @staticmethod
    def far_cell(rows):
        """What a plan takes, as a cell of the tables of docs/guide/far_apart.md."""
        row = rows[0]
        text = f"{row['exchange'].replace('outer of all', 'all ranks')}, `{row['codec']}`"
        if "outer" in row["yaml"]:
            text += " every step" if row["every"] == 1 else f" every {row['every']}"
            text += f", late {row['late']}" if row["late"] > 1 else ""
        text += f": {100 * row['efficiency']:.0f} %"
        return text if row["fits"] and row["helps"] else f"too slow ({text})"

    def check_documents(self, corners):
        """Compares cells of the table of models and rates with plans. Each takes a second or more."""
        cells = [[cell.strip() for cell in line.strip("|\n ").split("|")]
                 for line in (K_SOURCE / "docs/guide/far_apart.md").read_text().splitlines()
                 if line.startswith("|")]
        rates = {"20 Mbit/s": 0.02, "100 Mbit/s": 0.1, "500 Mbit/s": 0.5, "2 Gbit/s": 2}
        head = next(row for row in cells if row[1:] == list(rates))
        first = cells.index(head) + 2
        models = {row[0].split("`")[1]: row[1:] for row in cells[first:first + 4]}
        self.assertEqual(list(models), ["4e7", "4e8", "4e9", "4e10"])
        for model, rate in corners:
            found = self.far_cell(self.far_rows(
                "--model-bytes", model, "--world-size", "8", "--compute-ms", "1000",
                "--between-latency-us", "25000", "--between-gbit", str(rates[rate])))
            self.assertEqual(models[model][list(rates).index(rate)], found, f"{model}, {rate}")
        return dict((row[0], row[1:]) for row in cells)


class Plan(PlanCase):
    def test_advises_what_train_takes(self):
        done = self.gossamer(*self.K_WORLD, "--json")
        report = json.loads(done.stdout)
        self.assertEqual(done.stderr, "")
        self.assertEqual(len(report["assumed"]), 2)
        self.assertIn("gossamer bench compute CONFIG", report["assumed"][1])
        self.assertEqual(report["yaml"], report["rows"][0]["yaml"])
        self.expect_to_train({row["exchange"]: row for row in report["rows"]})
        text = self.gossamer(*self.K_WORLD).stdout
        self.assertRegex(text, r"\nexchange +topology +codec +every +late +ms per step")
        self.assertIn("\n" + report["recommendation"] + "\n\n" + report["yaml"], text)

    def test_takes_what_was_measured(self):
        self.write("links.json", json.dumps(
            {"within": {"latency_s": 1e-5, "bandwidth_bytes_per_s": 1e9},
             "between": {"latency_s": 1e-4, "bandwidth_bytes_per_s": 1e8}, "compute_s": 0.02,
             "pairs": {"0-1": {"within_node": True}}}))
        report = json.loads(self.gossamer(*self.K_WORLD, "--links", "links.json", "--json",
                                          "--between-gbit", "4").stdout)
        self.assertEqual([report["compute_ms"], report["assumed"]], [20, []])
        self.assertEqual(report["links"]["between"],
                         {"latency_s": 1e-4, "bandwidth_bytes_per_s": 5e8})
        report = json.loads(self.gossamer("plan", "--world-size", "2", "--bucket-bytes",
                                          "5e5,1e6", "--compute-ms", "7.5", "--json").stdout)
        self.assertEqual([report["bucket_bytes"], report["compute_ms"]], [[5e5, 1e6], 7.5])
        self.assertAlmostEqual(report["local_ms"], 7.5)

    def test_takes_regions_as_nodes(self):
        self.write("links.yaml", """\
between: {latency_s: 1e-5, bandwidth_bytes_per_s: 1e9}
regions: [{name: here, nodes: 2}, {name: there, nodes: 2}]
across: [{between: [here, there], latency_s: 0.1, bandwidth_bytes_per_s: 1e6}]
""")
        arguments = ["plan", "--model-bytes", "12e6", "--world-size", "4", "--links", "links.yaml"]
        report = json.loads(self.gossamer(*arguments, "--json").stdout)
        row = next(row for row in report["rows"] if "by region" in row["topology"])
        self.assertIn("local_size: 2", row["yaml"])
        self.expect_to_train({"by region": row})
        self.assertRegex(self.gossamer(*arguments).stdout, r"loss +MB across\n")

    def test_has_the_algorithms_that_are_asked_for(self):
        arguments = [*self.K_WORLD, "--algorithm", "relay", "--algorithm",
                     "{name: late_average, every: 4}"]
        report = json.loads(self.gossamer(*arguments, "--json").stdout)
        self.assertEqual({(row["exchange"], row["topology"]) for row in report["rows"]},
                         {("relay", "chain"), ("relay", "binary-tree"),
                          ("late_average {every: 4}", "")})
        coded = json.loads(self.gossamer(*self.K_WORLD, "--codec", "int8", "--json").stdout)
        for row in report["rows"] + coded["rows"]:
            self.assertGreater(row["bytes_sent"], 0)
        self.expect_to_train({row["exchange"]: row for row in report["rows"] + coded["rows"][:1]})
        for wrong, part in [("nix", "allowed: one of gossip"), ("async_gossip", "take gossip"),
                            ("{name: outer, evry: 2}", "evry"),
                            ("{name: outer, every: 70000}", "repeats after 70000 steps")]:
            done = self.gossamer(*self.K_WORLD, "--algorithm", wrong, code=2)
            self.assertIn(part, done.stderr)

    def test_advises_for_slow_links_what_trains(self):
        report = json.loads(self.gossamer(
            "plan", "--model-bytes", "40e6", "--world-size", "4", "--compute-ms", "100",
            "--between-gbit", "0.1", "--json").stdout)
        self.assertEqual(report["options"]["algorithm"]["name"], "outer")
        self.write("far.yaml", report["yaml"])
        self.gossamer("train", "far.yaml", "--ranks", "4", "run.steps=2", "data.train_size=64",
                      "data.val_size=32", "model.hidden=8")

    def test_measures_the_computing_time_that_it_asks_for(self):
        self.write("own.yaml", cli_case.K_TINY)
        # Of a configuration whose ranks meet by TCP, and may be lost.
        more = ["own.yaml", "comm.backend=tcp", "fault.mode=survive", "--steps", "3"]
        figures = json.loads(self.gossamer("bench", "compute", *more, "--json").stdout)
        self.assertLessEqual(figures["least_ms"], figures["compute_ms"])
        self.assertLessEqual(figures["compute_ms"], figures["most_ms"])
        text = self.gossamer("bench", "compute", *more).stdout
        found = re.search(r"gossamer plan --compute-ms (\S+) --model-bytes (\d+) ", text)
        self.assertEqual(int(found[2]), figures["model_bytes"])
        plan = json.loads(self.gossamer("plan", "--compute-ms", found[1], "--model-bytes",
                                        found[2], "--world-size", "2", "--json").stdout)
        self.assertEqual(sum(plan["bucket_bytes"]), figures["model_bytes"])
        self.assertFalse((self.folder / "runs").exists())

    def test_documents_say_what_the_plan_takes(self):
        self.check_documents([("4e7", "2 Gbit/s")])

    def test_measured_links_come_with_a_choice(self):
        arguments = ["--model-bytes", "1e7", "--compute-ms", "3"]
        bench = ["bench", "links", "--ranks", "2", "--local-size", "1", "--bytes", "65536",
                 "--transfers", "3", *arguments, "-o", "links.json"]
        measured = json.loads(self.gossamer(*bench, "--json").stdout)
        # The plan that knows what was measured says the same.
        plan = ["--world-size", "2", "--local-world-size", "1", "--links", "links.json", *arguments]
        self.assertEqual(self.far_rows(*plan), measured["plan"]["rows"])
        # A link that is a thousandth as fast leads to rarer, smaller or fewer messages.
        slow = json.loads((self.folder / "links.json").read_text())
        slow["between"]["bandwidth_bytes_per_s"] /= 1000
        self.write("links.json", json.dumps(slow))
        self.assertLess(self.far_rows(*plan)[0]["bytes_sent"],
                        measured["plan"]["rows"][0]["bytes_sent"])
        self.assertRegex(self.gossamer(*bench).stdout, r"\nTake [a-z -]+, [a-z0-9]+")

    def test_says_which_option_is_wrong(self):
        done = self.gossamer(*self.K_WORLD, "--compute-ms", "-1", code=2)
        self.assertIn("--compute-ms: compute_ms: -1 is out of range, allowed: ", done.stderr)
        self.assertRegex(self.gossamer("plan", "--help").stdout,
                         r"--compute-ms [^\n]*; a number >= 0 and <= 1e\+09,")

    def test_says_what_is_wrong_with_the_links(self):
        for text, part in [("{", "links.json:"), ('{"betwen": 1}', "betwe"),
                           ('{"within": {"latency_s": 0, "bandwidth_bytes_per_s": 1e9}}',
                            "between nodes")]:
            self.write("links.json", text)
            done = self.gossamer(*self.K_WORLD, "--links", "links.json", code=2)
            self.assertIn(part, done.stderr)
            self.assertEqual(done.stdout, "")


class WidePlan(PlanCase):
    def test_every_kind_of_row_trains(self):
        rows = self.rows(*self.K_WORLD)
        self.expect_to_train({(row["exchange"], row["codec"], row["topology"].split(",")[0]): row
                              for row in rows if row["codec"] != "int8"})

    def test_documents_say_what_the_plan_takes(self):
        self.check_worked_example(self.check_documents(
            [(model, rate) for model in ("4e7", "4e10") for rate in ("20 Mbit/s", "2 Gbit/s")]))

    def check_worked_example(self, rows):
        """Compares the two columns of three continents with plans."""
        def seconds(value):
            return f"{value:.1f} s" if value < 100 else f"{value:.0f} s"

        links = str(K_SOURCE / "configs/links_continents.yaml")
        for column, (model, compute_ms) in enumerate([("4e9", "2000"), ("40e9", "20000")]):
            plan = self.far_rows("--model-bytes", model, "--world-size", "12", "--compute-ms",
                                 compute_ms, "--links", links)

            def way(name, codec, travels=False):
                return next(row for row in plan if (row["exchange"], row["codec"]) == (name, codec)
                            and (row["late"] > 1) == travels
                            and row["topology"] in ("", "base-k"))

            def step(name, codec):
                return seconds(1e-3 * way(name, codec)["step_ms"])

            def rare(name):
                row = way(name, "int8", travels=True)
                self.assertTrue(row["fits"])
                return f"every {row['every']}: {100 * row['efficiency']:.0f} %"

            best = plan[0]
            expected = {
                "the plan takes": self.far_cell(plan),
                "an exchange of it takes, and may take":
                    f"{seconds(best['exchange_s'])}, {seconds(best['allowed_s'])}",
                "a step with all-reduce, float32": step("all-reduce", "fp32"),
                "a step with all-reduce, `int4`": step("all-reduce", "int4"),
                "a step with gossip, `int8`": step("gossip", "int8"),
                "averages of all, `int8`, that travel, within the budget": rare("outer of all"),
                "averages in pairs, `int8`, that travel, within the budget": rare("outer in pairs")}
            self.assertEqual({name: rows[name][column] for name in expected}, expected)


if __name__ == "__main__":
    sys.exit(cli_case.main())
