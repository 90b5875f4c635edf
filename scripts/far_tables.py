#!/usr/bin/env python3
"""Prints what scripts/far_losses.sh has measured: a row for each way to exchange.

    scripts/far_tables.py FOLDER [--loss LOSS]

A row has the validation loss of the mean model at the end, mean and standard deviation over the seeds; the
bytes that a rank sends in a step; and the steps and the bytes until the training loss was at most LOSS (2.5 when
not given). The training loss is the mean of the steps since the last record, and of all ranks.
"""

import argparse
import csv
import json
import statistics
from collections import defaultdict
from pathlib import Path


def steps_until(metrics: Path, loss: float) -> int | None:
    """The first record with such a training loss."""
    with metrics.open() as lines:
        for line in lines:
            record = json.loads(line)
            if record["kind"] == "step" and record["loss"] <= loss:
                return int(record["step"])
    return None


def row_of(key: tuple[str, ...], runs: list[dict[str, float]]) -> str:
    """The cells of one way; `runs` is one for each seed."""
    losses = [run["loss"] for run in runs]
    sent = statistics.mean(run["sent"] for run in runs)
    loss = f"{statistics.mean(losses):.3f}"
    if len(losses) > 1:
        loss += f" ± {statistics.stdev(losses):.3f}"
    steps, megabytes = "-", "-"
    if all(run["until"] is not None for run in runs):
        until = statistics.mean(run["until"] for run in runs)
        steps, megabytes = f"{until:.0f}", f"{until * sent / 1e6:.1f}"
    return " | ".join([*key, str(len(runs)), loss, f"{sent / 1e3:.1f}", steps, megabytes])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--loss", type=float, default=2.5)
    options = parser.parse_args()
    # By way and seed, because a grid and the runs of three seeds have one in common.
    rows = defaultdict(dict)
    for results in sorted(options.folder.glob("*/results.csv")):
        with results.open() as lines:
            for run in csv.DictReader(lines):
                key = (run["workers"], run["steps"], run["optimizer"], run["topology"])
                rows[key][run["seed"]] = {
                    "loss": float(run["loss_mean_model"]),
                    "sent": float(run["bytes_sent_per_step"]),
                    "until": steps_until(results.parent / run["run"] / "metrics.jsonl", options.loss),
                }
    limit = f"{options.loss:g}"
    print(f"| workers | steps | optimizer | way | seeds | loss | kB per step | steps to {limit} | MB to {limit} |")
    print("|---|---|---|---|---|---|---|---|---|")
    for key, by_seed in sorted(rows.items()):
        print(f"| {row_of(key, list(by_seed.values()))} |")


if __name__ == "__main__":
    main()
