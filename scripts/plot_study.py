#!/usr/bin/env python3
"""Draws what `gossamer bench topologies` has written: accuracy of the mean model against steps and
against bytes sent, and consensus distance against steps.

    scripts/plot_study.py runs/study_glyphs              writes runs/study_glyphs/plot.png
    scripts/plot_study.py runs/study_glyphs -o a.png
    scripts/plot_study.py runs/study_algorithms --against-lr    accuracy at the end against learning rate

One line per topology and optimizer: the mean over seeds, with a band of one standard deviation.
One row of pictures per way in which labels are dealt out. A study that still runs can be drawn too.
"""

import argparse
import csv
import math
import re
from pathlib import Path

# Finds a Python with matplotlib, or says what to type.
from plot import COLOURS, MARKERS, read_run, save, say_and_exit, series, set_style, spread_accuracies

import numpy as np  # noqa: E402
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.ticker import NullFormatter  # noqa: E402

STYLES = ["-", "--", ":", "-."]


# ---- reading -----------------------------------------------------------------------------------


def read_rows(folder):
    """The rows of results.csv, one per run."""
    path = folder / "results.csv"
    if not path.is_file():
        say_and_exit(
            f"{folder} has no results.csv. Give the folder of a study whose first run has ended, "
            "such as runs/study_glyphs."
        )
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        say_and_exit(f"{path} holds no run yet. Wait until the first one has ended.")
    return rows


def consensus_series(run):
    """(steps, distances) of the measurements while training and of the evaluations."""
    merged = {}
    for records in (run["step"], run["eval"]):
        merged.update(zip(*series(records, "consensus_distance")))
    points = [(step, value) for step, value in sorted(merged.items()) if value > 0]
    return [step for step, _ in points], [value for _, value in points]


def over_seeds(curves):
    """(steps, mean, deviation) over the steps that all the curves have."""
    shared = set(curves[0][0]).intersection(*(steps for steps, _ in curves))
    steps = np.array(sorted(shared))
    values = np.array([[dict(zip(*curve))[step] for step in steps] for curve in curves])
    if len(curves) < 2 or not shared:
        return steps, values[0] if len(curves) == 1 else np.array([]), np.zeros(len(steps))
    return steps, values.mean(axis=0), values.std(axis=0, ddof=1)


def read_groups(folder, rows):
    """Labels -> (topology, optimizer) -> the curves of that group, in the order of the table."""
    groups = {}
    for row in rows:
        run = read_run(folder / row["run"])
        alpha = row["dirichlet_alpha"]
        key = (row["topology"], row["optimizer"])
        group = groups.setdefault(alpha, {}).setdefault(
            key, {"accuracy": [], "consensus": [], "bytes_per_step": []}
        )
        group["accuracy"].append(series(run["eval"], "accuracy_mean_model"))
        group["consensus"].append(consensus_series(run))
        group["bytes_per_step"].append(float(row["bytes_sent_per_step"]))
    return groups


def lr_of(folder):
    """The learning rate of a run."""
    text = (folder / "config.yaml").read_text(encoding="utf-8")
    section = re.search(r"^optimizer:\n((?: +.*\n)+)", text, re.MULTILINE)
    return float(re.search(r"^ +lr: (\S+)", section[1], re.MULTILINE)[1])


def read_by_lr(folder, rows):
    """Labels -> topology -> learning rate -> the accuracies, in percent, at the end of the runs."""
    groups = {}
    for row in rows:
        curve = groups.setdefault(row["dirichlet_alpha"], {}).setdefault(row["topology"], {})
        accuracy = 100 * float(row["accuracy_mean_model"])
        curve.setdefault(lr_of(folder / row["run"]), []).append(accuracy)
    return groups


# ---- drawing -----------------------------------------------------------------------------------


class Looks:
    """A colour and a marker for each topology, a line style for each optimizer."""

    def __init__(self, rows):
        self.topologies = list(dict.fromkeys(row["topology"] for row in rows))
        self.optimizers = list(dict.fromkeys(row["optimizer"] for row in rows))

    def of(self, key):
        topology = self.topologies.index(key[0])
        optimizer = self.optimizers.index(key[1])
        return {
            "color": COLOURS[topology % len(COLOURS)],
            "marker": MARKERS[topology % len(MARKERS)],
            "linestyle": STYLES[optimizer % len(STYLES)],
            "linewidth": 1.6,
            "markersize": 4,
        }

    def handles(self):
        for index, name in enumerate(self.topologies):
            look = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}
            yield Line2D([], [], linewidth=2.5, markersize=5, label=name, **look)
        for index, name in enumerate(self.optimizers):
            yield Line2D([], [], color="#444444", linestyle=STYLES[index % len(STYLES)], label=name)


def draw_line(axes, x, mean, deviation, look):
    axes.plot(x, mean, **look)
    axes.fill_between(x, mean - deviation, mean + deviation, color=look["color"], alpha=0.07, linewidth=0)


def draw_accuracy(axes, group, looks, against_bytes):
    highest = -math.inf
    starts = []
    ends = []
    for key, curves in group.items():
        steps, mean, deviation = over_seeds(curves["accuracy"])
        if not len(steps):
            continue
        # Bytes of one worker: every step of a run sends as much as its mean step.
        x = steps * np.mean(curves["bytes_per_step"]) / 1e6 if against_bytes else steps
        draw_line(axes, x, 100 * mean, 100 * deviation, looks.of(key))
        highest = max(highest, 100 * mean.max())
        starts.append(100 * mean.min())
        ends.append(x[-1])
    axes.set_ylabel("accuracy of the mean model, %")
    axes.set_xlabel("MB sent by a worker" if against_bytes else "step")
    if starts:
        room = max(1.0, 0.05 * (highest - min(starts)))
        # The first evaluation is far below the rest, and must not hide the differences at the end.
        if not spread_accuracies(axes, min(starts), highest):
            axes.set_ylim(max(0.0, min(starts) - room), min(100.0, highest + room))
    if against_bytes and ends and max(ends) > 10 * min(ends) > 0:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())


def draw_consensus(axes, group, looks):
    for key, curves in group.items():
        steps, mean, deviation = over_seeds(curves["consensus"])
        if len(steps):
            # A band may not reach zero on a log scale.
            draw_line(axes, steps, mean, np.minimum(deviation, 0.9 * mean), looks.of(key))
            axes.set_yscale("log")
    axes.set_ylabel("distance to the mean model")
    axes.set_xlabel("step")


def draw(rows, groups, output):
    looks = Looks(rows)
    set_style()
    figure, panels = plt.subplots(
        len(groups), 3, figsize=(13.5, 0.9 + 3.7 * len(groups)), layout="constrained", squeeze=False
    )
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)
    for line, (alpha, group) in zip(panels, groups.items()):
        labels = f"labels dealt out with alpha {alpha}" if alpha else "the same labels everywhere"
        draw_accuracy(line[0], group, looks, against_bytes=False)
        draw_accuracy(line[1], group, looks, against_bytes=True)
        draw_consensus(line[2], group, looks)
        line[0].set_title(f"Accuracy: {labels}")
        line[1].set_title("Accuracy against traffic")
        line[2].set_title("Consensus distance")
    handles = list(looks.handles())
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 8), frameon=False)
    save(figure, output)


def draw_by_lr(groups, output):
    set_style()
    figure, panels = plt.subplots(
        1, len(groups), figsize=(0.5 + 4.3 * len(groups), 4.2), layout="constrained", squeeze=False
    )
    for axes, (alpha, curves) in zip(panels[0], groups.items()):
        for index, (name, accuracies) in enumerate(curves.items()):
            rates = sorted(accuracies)
            mean = np.array([np.mean(accuracies[rate]) for rate in rates])
            deviation = np.array([np.std(accuracies[rate]) for rate in rates])
            look = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}
            draw_line(axes, rates, mean, deviation, {**look, "label": name})
        axes.set_xscale("log")
        axes.set_xlabel("learning rate")
        axes.set_ylabel("accuracy of the mean model, %")
        axes.set_title(f"labels dealt out with alpha {alpha}" if alpha else "the same labels everywhere")
    handles, names = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=min(len(names), 6), frameon=False)
    save(figure, output)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, metavar="STUDY", help="the folder of a study")
    parser.add_argument("-o", "--output", type=Path, metavar="PNG", help="the picture to write")
    parser.add_argument(
        "--against-lr", action="store_true", help="accuracy at the end against the learning rate"
    )
    arguments = parser.parse_args()
    rows = read_rows(arguments.study)
    output = arguments.output or arguments.study / "plot.png"
    if arguments.against_lr:
        draw_by_lr(read_by_lr(arguments.study, rows), output)
    else:
        draw(rows, read_groups(arguments.study, rows), output)
    print(f"wrote {output}")


if __name__ == "__main__":
    main()
