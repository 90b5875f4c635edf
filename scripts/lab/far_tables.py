#!/usr/bin/env python3
"""Prints what scripts/lab/far_losses.sh has measured: a row for each way to exchange.

    scripts/lab/far_tables.py FOLDER [--loss LOSS]

A row has validation losses at the end, means over the seeds: of the mean model, with the standard deviation, and of
the ranks' own models; then the consensus distance, the bytes that a rank sends in a step, and the first record whose
training loss was at most LOSS (2.2 when not given). The training loss is the mean of the steps since the last record,
and of all ranks. The bytes leave out what evaluations send. Exit code 1: there are no results.
"""

import argparse
import csv
import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path


def records(metrics: Path) -> list[dict]:
    with metrics.open() as lines:
        return [json.loads(line) for line in lines]


def figures(folder: Path, run: dict[str, str], limit: float) -> dict:
    """What one run says."""
    lines = records(folder / run["run"] / "metrics.jsonl")
    final = lines[-1]
    reached = (line for line in lines if line["kind"] == "step" and line["loss"] <= limit)
    return {
        "loss": final["loss_mean_model"],
        "local": final["loss_mean_local"],
        "distance": final["consensus_distance"],
        "sent": final["bytes_sent_per_step"],
        "until": next((line["step"] for line in reached), None),
    }


def row_of(key: tuple[str, ...], runs: list[dict]) -> str:
    """The cells of one way; `runs` is one for each seed."""

    def mean(name: str) -> float:
        return statistics.mean(run[name] for run in runs)

    deviation = f" ± {statistics.stdev(run['loss'] for run in runs):.3f}" if len(runs) > 1 else ""
    until = "-" if any(run["until"] is None for run in runs) else f"{mean('until'):.0f}"
    cells = [
        *key,
        str(len(runs)),
        f"{mean('loss'):.3f}{deviation}",
        f"{mean('local'):.3f}",
        f"{mean('distance'):.2g}",
        f"{mean('sent') / 1e3:.1f}",
        until,
    ]
    return " | ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--loss", type=float, default=2.2)
    options = parser.parse_args()
    # By way and seed, because a grid and the runs of three seeds have one in common.
    rows = defaultdict(dict)
    for results in sorted(options.folder.glob("*/results.csv")):
        with results.open() as lines:
            for run in csv.DictReader(lines):
                key = (run["workers"], run["steps"], run["optimizer"], run["topology"])
                rows[key][run["seed"]] = figures(results.parent, run, options.loss)
    if not rows:
        sys.exit(f"far_tables: no results.csv in the folders of {options.folder}")
    reached = f"{options.loss:g} at step"
    print(f"| workers | steps | optimizer | way | seeds | loss | own models | distance | kB per step | {reached} |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for key, by_seed in sorted(rows.items()):
        print(f"| {row_of(key, list(by_seed.values()))} |")


if __name__ == "__main__":
    main()
