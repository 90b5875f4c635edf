#!/usr/bin/env python3
"""Draws the loss, accuracy and consensus distance of training runs into one picture.

    scripts/plot.py runs/ring                        writes runs/ring/plot.png
    scripts/plot.py runs/ring runs/one-peer -o a.png
    scripts/plot.py runs/ring runs/one-peer --against time --validation loss

A run is a folder with the metrics.jsonl that `gossamer train` writes. With several runs and no -o,
the picture is ./runs_plot.png. Time is the number of steps times the run's mean time of a training
step, without evaluations; it needs finished runs.
"""

import argparse
import json
import math
import os
import sys
from functools import partial
from pathlib import Path


def say_and_exit(text):
    print(f"{Path(sys.argv[0]).name}: {text}", file=sys.stderr)
    sys.exit(1)


try:
    import matplotlib
except ImportError:
    # The project's own Python has matplotlib; run again with that one, once.
    python = Path(__file__).resolve().parent.parent / ".venv" / "bin" / "python"
    if os.environ.get("GOSSAMER_PLOT_AGAIN") or not os.access(python, os.X_OK):
        say_and_exit("this Python has no matplotlib. Type scripts/setup.sh, then run this again.")
    os.environ["GOSSAMER_PLOT_AGAIN"] = "1"
    os.execv(python, [str(python), *sys.argv])

matplotlib.use("Agg")
import numpy as np  # noqa: E402
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter  # noqa: E402

# Paul Tol's "bright" and "muted" colours: told apart with any kind of colour vision.
COLOURS = ["#4477AA", "#EE6677", "#228833", "#AA3377", "#CCBB44", "#66CCEE", "#882255", "#999933"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]


# ---- reading -----------------------------------------------------------------------------------


def number(record, key):
    """The value of a key as a float; nan if it is missing, null, or not a number."""
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    return float(value)


def read_run(folder):
    """The records of a run, by kind."""
    path = folder / "metrics.jsonl"
    if not folder.exists():
        say_and_exit(f"there is no folder {folder}. Give the folder of a run, such as runs/NAME.")
    if not path.is_file():
        say_and_exit(
            f"{folder} has no metrics.jsonl. Is it the folder of a run, and has the run begun to train?"
        )
    kinds = {"step": [], "eval": [], "final": []}
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for index, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            if index == len(lines) - 1:
                # No line end: the run is writing this line at this moment, or was killed doing so.
                print(
                    f"{Path(sys.argv[0]).name}: {path}:{index + 1}: the last line is not complete and is left out.",
                    file=sys.stderr,
                )
                continue
            say_and_exit(
                f"{path}:{index + 1}: this line is not JSON ({error.msg}, column {error.colno}). "
                "Delete the line, and run this again."
            )
        if not isinstance(record, dict):
            say_and_exit(f"{path}:{index + 1}: this line is no JSON object. Delete it, and run this again.")
        if record.get("kind") in kinds:
            if math.isnan(number(record, "step")):
                say_and_exit(f"{path}:{index + 1}: this record has no number under \"step\".")
            kinds[record["kind"]].append(record)
    if not kinds["step"] and not kinds["eval"]:
        say_and_exit(f"{path} has no steps yet. Wait until the run has trained for a while.")
    for records in kinds.values():
        records.sort(key=lambda record: record["step"])
    return kinds


def series(records, key):
    """(steps, values) of the records that have a finite value under the key."""
    points = [(record["step"], number(record, key)) for record in records]
    points = [point for point in points if math.isfinite(point[1])]
    return [point[0] for point in points], [point[1] for point in points]


def short_names(folders):
    """The shortest ends of the paths that tell the runs apart."""
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(len(p) for p in parts) + 1):
        names = ["/".join(p[-length:]) for p in parts]
        if len(set(names)) == len(set(parts)):
            return names
    return [str(folder) for folder in folders]


def smooth(values):
    """A centred average with bell-shaped weights about 1/25 of the run wide; near the ends it
    averages over what is there."""
    spread = len(values) / 50
    if spread < 1:
        return values
    reach = int(3 * spread)
    weights = [math.exp(-0.5 * (offset / spread) ** 2) for offset in range(-reach, reach + 1)]
    values = np.asarray(values)
    return np.convolve(values, weights, "same") / np.convolve(np.ones_like(values), weights, "same")


# ---- drawing -----------------------------------------------------------------------------------


def widths(count):
    """The widths of lines that may lie on one another: the first is drawn widest, so that it shows
    beside those that are drawn over it."""
    return [1.6 + 2.4 * (count - 1 - index) / max(1, count - 1) for index in range(count)]


ACCURACY_TICKS = [0, 20, 40, 60, 70, 80, 90, 95, 97, 98, 99, 99.5, 99.8, 99.9, 100]


def spread_accuracies(axes, lowest, highest):
    """Scales an axis of per cent from the first evaluation to the best, so that both the beginning
    and small differences at the end show: by the logarithm of the error."""
    if highest < 90 or highest - lowest < 20:
        return False
    # The best value, and 100 %, are at a finite place.
    least_error = max(0.05, 0.5 * (100 - highest))
    axes.set_yscale(
        "function",
        functions=(
            lambda value: -np.log(np.maximum(100 - np.asarray(value, dtype=float), 0) + least_error),
            lambda place: 100 + least_error - np.exp(-np.asarray(place, dtype=float)),
        ),
    )
    axes.set_ylim(max(0.0, lowest - 0.1 * (100 - lowest)), min(100.0, highest + 0.4 * (100 - highest)))
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(FixedLocator([tick for tick in ACCURACY_TICKS if low <= tick <= high]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    return True


def draw_loss(axes, runs, colours):
    drawn = False
    smoothed = []
    for run, colour, width in zip(runs, colours, widths(len(runs))):
        steps, values = series(run["step"], "loss")
        if not steps:
            continue
        drawn = True
        line = smooth(values)
        smoothed += list(line)
        if line is not values:
            axes.plot(steps, values, color=colour, linewidth=0.6, alpha=0.25, rasterized=True)
        axes.plot(steps, line, color=colour, linewidth=width, marker="o" if len(steps) == 1 else None)
    axes.set_title("Training loss, each rank on its own data")
    axes.set_ylabel("loss")
    # Losses that fall over more than a factor of 30 show only on a log scale.
    if smoothed and min(smoothed) > 0 and max(smoothed) / min(smoothed) > 30:
        axes.set_yscale("log")
    elif smoothed:
        # One wild step must not squeeze all others to a line.
        margin = 0.15 * (max(smoothed) - min(smoothed)) or 0.1
        bottom = min(smoothed) - margin
        axes.set_ylim(max(0, bottom) if min(smoothed) >= 0 else bottom, max(smoothed) + margin)
    return drawn


def draw_validation(axes, runs, colours, what):
    """Draws the `what` of evaluations: accuracy or loss."""
    drawn = False
    lowest, highest = math.inf, -math.inf
    scale = 100 if what == "accuracy" else 1
    for index, (run, colour) in enumerate(zip(runs, colours)):
        for key, style, width in (
            (f"{what}_mean_model", "-", widths(len(runs))[index]),
            (f"{what}_worst_local", "--", 1.3),
        ):
            steps, values = series(run["eval"], key)
            if not steps:
                continue
            drawn = True
            values = [scale * value for value in values]
            lowest, highest = min(lowest, *values), max(highest, *values)
            axes.plot(
                steps,
                values,
                style,
                color=colour,
                linewidth=width,
                marker=MARKERS[index % len(MARKERS)],
                markersize=4 if len(steps) <= 30 else 0,
                markerfacecolor=colour if style == "-" else "white",
            )
    axes.set_title(f"Validation {what}")
    axes.set_ylabel("%" if what == "accuracy" else "loss")
    if drawn:
        room = max(0.01 * scale, 0.05 * (highest - lowest))
        top = highest + room if what == "loss" else min(100.0 + room / 4, highest + room)
        if what != "accuracy" or not spread_accuracies(axes, lowest, highest):
            axes.set_ylim(max(0.0, lowest - room), top)
        axes.legend(
            handles=[
                Line2D([], [], color="#444444", linewidth=1.8, label="mean model"),
                Line2D([], [], color="#444444", linewidth=1.3, linestyle="--", label="worst rank's own"),
            ],
            loc="lower right" if what == "accuracy" else "upper right",
            frameon=True,
            framealpha=0.85,
            edgecolor="none",
        )
    return drawn


def draw_consensus(axes, runs, colours, names):
    drawn = False
    equal = []
    values_of_all = []
    for index, (run, colour) in enumerate(zip(runs, colours)):
        merged = {}
        for records in (run["step"], run["eval"]):
            merged.update(zip(*series(records, "consensus_distance")))
        points = [(step, value) for step, value in sorted(merged.items()) if value > 0]
        if not points:
            # A log scale has no place for the zeros of ranks whose models are equal.
            equal += [names[index]] if merged else []
            continue
        drawn = True
        steps, values = zip(*points)
        values_of_all += values
        axes.plot(
            steps,
            values,
            color=colour,
            linewidth=widths(len(runs))[index],
            marker=MARKERS[index % len(MARKERS)],
            markersize=4 if len(steps) <= 30 else 0,
        )
    axes.set_title("Consensus distance")
    axes.set_ylabel("distance to the mean model")
    if equal:
        axes.text(0.02, 0.03, f"{', '.join(equal)}: 0, not drawn", transform=axes.transAxes, color="#555555")
    if drawn:
        axes.set_yscale("log")
        ratio = max(values_of_all) / min(values_of_all)
        if ratio < 100:
            # Powers of ten alone would leave the axis almost without numbers.
            few = MaxNLocator(5) if ratio < 4 else LogLocator(subs=(1, 2, 5))
            axes.yaxis.set_major_locator(few)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    return drawn


def measure_against_time(run, name):
    """Replaces the steps of a run's records by seconds in training steps."""
    final = run["final"][-1] if run["final"] else {}
    seconds = number(final, "train_s") / number(final, "step")
    if not math.isfinite(seconds):
        say_and_exit(f"{name} has not ended, so its time per step is unknown. Leave out --against time.")
    for kind in ("step", "eval"):
        for record in run[kind]:
            record["step"] *= seconds


def step_range(runs):
    steps = [record["step"] for run in runs for kind in ("step", "eval") for record in run[kind]]
    return min(steps), max(steps)


def set_style():
    plt.rcParams.update(
        {
            "font.size": 10,
            "axes.titlesize": 11,
            "axes.titleweight": "bold",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#E2E2E2",
            "grid.linewidth": 0.7,
            "axes.axisbelow": True,
            "legend.fontsize": 9,
        }
    )


def draw(runs, names, output, *, against="steps", validation="accuracy"):
    colours = [COLOURS[i % len(COLOURS)] for i in range(len(runs))]
    set_style()
    longest = max(len(name) for name in names)
    columns = max(1, min(len(names), int(150 / (longest + 8))))
    rows = math.ceil(len(names) / columns)
    figure, panels = plt.subplots(1, 3, figsize=(13.5, 3.9 + 0.25 * rows), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)
    first, last = step_range(runs)
    absent = ("no evaluation yet", "no loss recorded", "not measured yet")
    # What the models are worth comes first: ranks with few labels of their own learn these easily.
    paints = (partial(draw_validation, what=validation), draw_loss, partial(draw_consensus, names=names))
    for axes, paint, text in zip(panels, paints, absent):
        if not paint(axes, runs, colours):
            axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", color="#777777")
            axes.set_yticks([])
            axes.set_ylabel("")
            axes.grid(False)
        axes.set_xlabel("step" if against == "steps" else "seconds of training")
        room = 0.03 * (last - first) or 1
        axes.set_xlim(first - room, last + room)
        axes.xaxis.get_major_locator().set_params(integer=True, nbins=6)
    handles = [
        Line2D([], [], color=colour, linewidth=2.5, marker=MARKERS[i % len(MARKERS)], markersize=5, label=name)
        for i, (colour, name) in enumerate(zip(colours, names))
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False)
    save(figure, output)


def save(figure, output):
    """Writes a picture, or says why it cannot."""
    try:
        figure.savefig(output, dpi=150)
    except (OSError, ValueError) as error:
        say_and_exit(f"{output} cannot be written: {error}. Choose another file with -o.")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the folder of a run")
    parser.add_argument("-o", "--output", type=Path, metavar="PNG", help="the picture to write")
    parser.add_argument("--against", choices=["steps", "time"], default="steps",
                        help="the horizontal axis (default: steps)")
    parser.add_argument("--validation", choices=["accuracy", "loss"], default="accuracy",
                        help="the first picture (default: accuracy)")
    arguments = parser.parse_args()

    runs = [read_run(folder) for folder in arguments.runs]
    names = short_names(arguments.runs)
    if arguments.against == "time":
        for run, name in zip(runs, names):
            measure_against_time(run, name)
    output = arguments.output
    if output is None:
        output = arguments.runs[0] / "plot.png" if len(runs) == 1 else Path("runs_plot.png")
    draw(runs, names, output, against=arguments.against, validation=arguments.validation)
    print(f"wrote {output}")


if __name__ == "__main__":
    main()
