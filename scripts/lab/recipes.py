#!/usr/bin/env python3
"""Measures by how much ways to exchange need another rate and norm than all-reduce.

    scripts/lab/recipes.py run FILE --images IMAGES --text TEXT [--only REGEX] [--program PROGRAM]
    scripts/lab/recipes.py table FILE
    scripts/lab/recipes.py switch FILE --images IMAGES --text TEXT [--only REGEX] [--program PROGRAM]
    scripts/lab/recipes.py noise FILE --images IMAGES --text TEXT [--only REGEX] [--program PROGRAM]

`run` trains small models by `gossamer train`, at equal steps. IMAGES is MNIST's t10k-images-idx3-ubyte.gz, TEXT is
tinyshakespeare. It appends a JSON line to FILE for each finished run, and leaves out the runs that FILE has, so that
the same command goes on after a stop. All-reduce comes first. Each other way then has, for every norm, rates around
all-reduce's best one: the grid grows by factors of 2 until its best rate is not at its end.

`table` takes all-reduce's best rate, and then half of it, for a recipe. It prints how far each way ends above
all-reduce with this recipe: with the factors 1 and root on its rate, then on its norm, where root is the root of the
number of ranks; then with the best rate and norm of the grid.

`switch` trains with all-reduce's best rate, and then with half of it, by each way without `train.recipe: allreduce` and
with it, and prints how far the ways end above all-reduce.

`noise` prints how much longer the gradients of single ranks are than their mean, in the three thirds of a run. It
trains by all-reduce, whose checkpoints hold the norm of the mean, and by gossip, whose checkpoints hold the norms of
the ranks. Both have all-reduce's best rate of FILE.
"""

import argparse
import json
import math
import re
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# More factors of 2 than these from all-reduce's rate are not tried.
FARTHEST = 4
# Norms that `noise` reads in a run.
NORMS = 30


@dataclass(frozen=True)
class Point:
    """One run. `norm` 0: no clipping."""

    task: str
    ranks: int
    batch: int
    optimizer: str
    way: str
    rate: float
    norm: float
    seed: int

    def key(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Cell:
    """Runs that differ in rate, norm and seed alone. `first` is the rate with which all-reduce's grid begins."""

    task: str
    ranks: int
    batch: int
    optimizer: str
    first: float
    seeds: tuple[int, ...]
    ways: tuple[str, ...]
    # The norm of the recipe that `switch` takes.
    norm: float = 1.0

    def name(self, way: str) -> str:
        return f"{self.task} n={self.ranks} batch={self.batch} {self.optimizer} {way}"

    def point(self, way: str, rate: float, norm: float, seed: int) -> Point:
        return Point(self.task, self.ranks, self.batch, self.optimizer, way, rate, norm, seed)


def images(model: dict, alpha: float | None = None) -> dict:
    data = {"name": "idx", "train_range": [0, 8500], "val_range": [8500, 10000]}
    return {"model": model, "data": {**data, "dirichlet_alpha": alpha}, "steps": 300, "warmup": 20, "decay": 0.01}


def text(size: dict, context: int, steps: int, warmup: int, end: int) -> dict:
    data = {"name": "text", "context": context, "train_range": [0, 1000000], "val_range": [1000000, end]}
    return {"model": {"name": "gpt", **size}, "data": data, "steps": steps, "warmup": warmup, "decay": 0.1}


TASKS = {
    "mlp": images({"name": "mlp", "hidden": 64}),
    "mlp-uneven": images({"name": "mlp", "hidden": 64}, 0.1),
    "mlp-wide": images({"name": "mlp", "hidden": 256}),
    "cnn": images({"name": "cnn", "width": 8}),
    "cnn-uneven": images({"name": "cnn", "width": 8}, 0.1),
    "gpt-tiny": text({"size": "tiny"}, 64, 800, 40, 1020000),
    "gpt-mini": text({"size": "mini"}, 128, 1600, 50, 1060000),
}
# The same with so many times the warm-up.
for task, factor in (("mlp", 2), ("mlp", 4), ("gpt-mini", 2)):
    TASKS[f"{task}-warm-{factor}"] = {**TASKS[task], "warmup": factor * TASKS[task]["warmup"]}
OPTIMIZERS = {
    "adamw": {"name": "adamw"},
    "accum_adamw": {"name": "accum_adamw"},
    "sgd": {"name": "sgd", "momentum": 0.9},
    "lion": {"name": "lion"},
    "muon": {"name": "muon", "groups": [{"vectors": True, "match": "wte|wpe|head|output", "optimizer": "adamw"}]},
}
GOSSIP = {"topology": {"name": "one-peer-exp"}}


def outer(every: int) -> dict:
    """Plain averages of models."""
    return {"algorithm": {"name": "outer", "kind": "diloco", "momentum": 0, "lr": 1, "every": every}}


WAYS = {
    "allreduce": {"algorithm": "allreduce"},
    "gossip": {"algorithm": "gossip", **GOSSIP},
    "gossip-base-k": {"algorithm": "gossip", "topology": {"name": "base-k"}},
    "gossip-share-8": {"algorithm": {"name": "gossip", "share_moments": 8}, **GOSSIP},
    "all-1": outer(1),
    "all-2": outer(2),
    "all-2-topk": {**outer(2), "comm": {"codec": "topk"}},
    "all-10": outer(10),
}
# Ways that end a step with mixed models.
for name in ("gossip", "gossip-base-k", "gossip-share-8", "all-2", "all-2-topk", "all-10"):
    way = WAYS[name]["algorithm"]
    at_end = {"name": way} if isinstance(way, str) else way
    WAYS[f"{name}-at-end"] = {**WAYS[name], "algorithm": {**at_end, "overlap": False}}
# Behind the name of a way: the rate and the norm are those of a recipe for all-reduce.
RECIPE = "+recipe"


def cells() -> Iterator[Cell]:
    """In the order in which they run."""
    three, two, one = (1, 2, 3), (1, 2), (1,)
    others = (("sgd", 0.1), ("accum_adamw", 0.008), ("lion", 0.001))
    yield Cell("mlp", 4, 16, "adamw", 0.008, three, ("gossip", "all-2", "all-10"))
    yield Cell("mlp", 8, 16, "adamw", 0.008, two, ("gossip", "all-10"))
    yield Cell("gpt-tiny", 4, 4, "adamw", 0.008, one, ("gossip", "all-10"))
    for optimizer, first in others:
        yield Cell("mlp", 4, 16, optimizer, first, two, ("gossip",))
    yield Cell("mlp", 2, 16, "adamw", 0.008, two, ("gossip", "all-10"))
    yield Cell("mlp", 16, 16, "adamw", 0.008, two, ("gossip",))
    yield Cell("mlp-uneven", 8, 16, "adamw", 0.008, two, ("gossip", "gossip-share-8"))
    yield Cell("mlp", 4, 64, "adamw", 0.008, two, ("gossip", "all-10"))
    yield Cell("gpt-tiny", 8, 4, "adamw", 0.008, one, ("gossip", "all-10"))
    yield Cell("cnn", 4, 16, "adamw", 0.016, two, ("gossip", "all-10"))
    yield Cell("gpt-mini", 4, 4, "adamw", 0.006, three, ("gossip", "all-2-topk", "all-10"))


def switched() -> Iterator[Cell]:
    """What `switch` tries, in the order in which it runs. None of it was used to find the rule."""
    three, two = (1, 2, 3), (1, 2)
    gossip, often = ("gossip", "gossip-at-end"), ("gossip", "gossip-at-end", "all-2-topk", "all-10")
    yield Cell("mlp-wide", 4, 16, "adamw", 0.004, three, often)
    yield Cell("mlp-uneven", 8, 16, "adamw", 0.008, three, (*gossip, "gossip-share-8", "gossip-share-8-at-end"))
    yield Cell("mlp", 2, 16, "adamw", 0.008, three, gossip)
    yield Cell("mlp", 16, 16, "adamw", 0.008, two, gossip)
    yield Cell("mlp", 4, 64, "adamw", 0.008, two, gossip)
    yield Cell("mlp", 4, 16, "accum_adamw", 0.008, two, gossip)
    yield Cell("mlp", 4, 16, "sgd", 0.1, two, gossip)
    yield Cell("mlp", 4, 16, "lion", 0.002, three, gossip, norm=0.0)
    yield Cell("mlp", 4, 16, "muon", 0.008, three, gossip, norm=0.0)
    yield Cell("cnn", 4, 16, "adamw", 0.016, two, gossip)
    yield Cell("cnn", 4, 16, "lion", 0.001, three, gossip, norm=0.0)
    yield Cell("cnn", 4, 16, "muon", 0.016, three, gossip, norm=0.0)
    yield Cell("gpt-mini", 4, 4, "adamw", 0.006, three, often)
    yield Cell("gpt-mini", 4, 4, "muon", 0.003, (1,), gossip)
    for ranks in (6, 12):
        yield Cell("mlp", ranks, 16, "adamw", 0.008, three, ("gossip-base-k", "gossip-base-k-at-end"))
    for ranks, task in ((4, "mlp-warm-2"), (8, "mlp-warm-2"), (4, "mlp-warm-4"), (8, "mlp-warm-4")):
        yield Cell(task, ranks, 16, "adamw", 0.008, three, gossip)
    yield Cell("gpt-mini-warm-2", 4, 4, "adamw", 0.006, (1,), (*gossip, "all-2-topk"))


class Results:
    """The file of finished runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, dict] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self.rows[Point(**row["point"]).key()] = row

    def add(self, point: Point, figures: dict) -> None:
        row = {"point": asdict(point), **figures}
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.rows[point.key()] = row

    def has(self, point: Point) -> bool:
        return point.key() in self.rows

    def loss(self, cell: Cell, way: str, rate: float, norm: float) -> float | None:
        """The mean over the cell's seeds; infinite where a run has diverged; None where a run is missing."""
        rows = [self.rows.get(cell.point(way, rate, norm, seed).key()) for seed in cell.seeds]
        if any(row is None for row in rows):
            return None
        return statistics.mean(math.inf if row["loss"] is None else row["loss"] for row in rows)

    def grid(self, cell: Cell, way: str) -> dict[tuple[float, float], float]:
        """The mean loss for each rate and norm whose seeds are all there."""
        fixed = asdict(cell.point(way, 0, 0, 0))
        same = ("task", "ranks", "batch", "optimizer", "way")
        points = {
            (row["point"]["rate"], row["point"]["norm"])
            for row in self.rows.values()
            if all(row["point"][name] == fixed[name] for name in same)
        }
        losses = {point: self.loss(cell, way, *point) for point in sorted(points)}
        return {point: loss for point, loss in losses.items() if loss is not None}


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


def configuration(point: Point, options: argparse.Namespace, folder: Path) -> dict:
    """What `gossamer train` reads. JSON is YAML."""
    task = TASKS[point.task]
    path = options.text if task["data"]["name"] == "text" else options.images
    data = {**task["data"], "path": str(path), "batch_size": point.batch}
    run = {"seed": point.seed, "steps": task["steps"], "threads": 1, "checkpoint_every": "never"}
    train = {"grad_clip": "global", "grad_clip_norm": point.norm} if point.norm else {"grad_clip": "none"}
    if point.way.endswith(RECIPE):
        train["recipe"] = "allreduce"
    return {
        "run": {**run, "output_dir": str(folder / "run")},
        "model": task["model"],
        "data": {key: value for key, value in data.items() if value is not None},
        "optimizer": {**OPTIMIZERS[point.optimizer], "lr": point.rate, "weight_decay": task["decay"]},
        "lr_schedule": {"name": "cosine_with_warmup", "t_warmup": task["warmup"]},
        "train": train,
        "log": {"report": False, "every": 50, "level": "error"},
        **WAYS[point.way.removesuffix(RECIPE)],
    }


def train(configured: dict, ranks: int, options: argparse.Namespace, folder: Path) -> list[dict] | None:
    """The records of a run; None: it has diverged."""
    file = folder / "config.yaml"
    file.write_text(json.dumps(configured))
    command = [str(options.program), "train", str(file), "--ranks", str(ranks)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # 76: a loss or a gradient is not finite.
    if done.returncode == 76:
        return None
    if done.returncode != 0:
        sys.exit(f"recipes: {' '.join(command)} ended with {done.returncode}:\n{done.stderr}{json.dumps(configured)}")
    return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]


def run_point(point: Point, options: argparse.Namespace) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        records = train(configuration(point, options, Path(folder)), point.ranks, options, Path(folder))
    if records is None:
        return {"loss": None, "accuracy": None, "train_loss": None, "sent": None}
    final = records[-1]
    last = [record["loss"] for record in records if record["kind"] == "step"][-1]
    return {
        "loss": final["loss_mean_model"],
        "accuracy": final.get("accuracy_mean_model"),
        "train_loss": last,
        "sent": final["bytes_sent_per_step"],
    }


def finish(point: Point, results: Results, options: argparse.Namespace) -> None:
    """Make a run that the results lack."""
    if not results.has(point):
        results.add(point, run_point(point, options))


def best_of(losses: dict[tuple[float, float], float], norm: float | None = None) -> tuple[float, float] | None:
    """The rate and norm of the least loss, of one norm where it is given."""
    chosen = {point: loss for point, loss in losses.items() if norm in (None, point[1]) and math.isfinite(loss)}
    return min(chosen, key=chosen.__getitem__) if chosen else None


def search(cell: Cell, way: str, norm: float, middle: float, results: Results) -> Iterator[Point]:
    """Grows a grid of rates around `middle` until the best one is inside."""
    tried = [rounded(middle * 2**power) for power in (-1, 0, 1)]
    while True:
        for rate in tried:
            yield from (cell.point(way, rate, norm, seed) for seed in cell.seeds)
        ordered = sorted(rate for rate, at in results.grid(cell, way) if at == norm)
        best = best_of(results.grid(cell, way), norm)
        if best is None:
            next_rate = ordered[0] / 2
        elif best[0] == ordered[0]:
            next_rate = best[0] / 2
        elif best[0] == ordered[-1]:
            next_rate = best[0] * 2
        else:
            return
        if abs(math.log2(next_rate / middle)) > FARTHEST:
            return
        tried = [rounded(next_rate)]


def wanted(cell: Cell, results: Results) -> Iterator[Point]:
    """The points of a cell, one after the other; each is finished before the next is asked for."""
    yield from search(cell, "allreduce", 1.0, cell.first, results)
    recipe = best_of(results.grid(cell, "allreduce"), 1.0)
    if recipe is None:
        return
    root = math.sqrt(cell.ranks)
    for way in cell.ways:
        for norm in (1.0, rounded(root)):
            yield from search(cell, way, norm, recipe[0], results)
            # What the root of n makes of all-reduce's best rate, and of half of it.
            for rate in (recipe[0] / 2, recipe[0]):
                yield from (cell.point(way, rounded(rate * root), norm, seed) for seed in cell.seeds)
    for way in cell.ways:
        best = best_of(results.grid(cell, way))
        if best is not None:
            yield from (cell.point(way, best[0], 0.0, seed) for seed in cell.seeds)


def run(options: argparse.Namespace) -> None:
    results = Results(options.file)
    for cell in cells():
        if not re.search(options.only, cell.name("")):
            continue
        for point in wanted(cell, results):
            finish(point, results, options)


def switch(options: argparse.Namespace) -> None:
    results = Results(options.file)

    def loss(cell: Cell, way: str, rate: float) -> float:
        for seed in cell.seeds:
            finish(cell.point(way, rate, cell.norm, seed), results, options)
        found = results.loss(cell, way, rate, cell.norm)
        assert found is not None
        return found

    print("| runs | rate | all-reduce | behind it | with the recipe |\n|---|---|---|---|---|")
    for cell in switched():
        if not re.search(options.only, cell.name("")):
            continue
        for point in search(cell, "allreduce", cell.norm, cell.first, results):
            finish(point, results, options)
        best = best_of(results.grid(cell, "allreduce"), cell.norm)
        for rate in () if best is None else (best[0], rounded(best[0] / 2)):
            aim = loss(cell, "allreduce", rate)
            for way in cell.ways:
                own, new = (cost(loss(cell, name, rate), aim) for name in (way, way + RECIPE))
                print(f"| {cell.name(way)} | {rate:g} | {aim:.3f} | {own} | {new} |", flush=True)


def last_norm(file: Path) -> float:
    """The norm of the last gradient that a checkpoint of a rank holds."""
    with file.open("rb") as stream:
        (header,) = struct.unpack("<Q", stream.read(8))
        place = json.loads(stream.read(header))["run/last_gradient_norm"]["data_offsets"]
        stream.seek(8 + header + place[0])
        (norm,) = struct.unpack("<d", stream.read(8))
    return norm


def mean_squares(point: Point, options: argparse.Namespace) -> list[float]:
    """The mean squared norm of a rank's gradient in each third of a run that does not clip."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        configured = configuration(point, options, folder)
        configured["run"] |= {"checkpoint_every": configured["run"]["steps"] // NORMS, "keep": NORMS}
        configured["train"] = {"grad_clip": "delayed_global", "grad_clip_norm": 1e9}
        if train(configured, point.ranks, options, folder) is None:
            return [math.nan] * 3
        steps = sorted((folder / "run/checkpoints").glob("step-*"))
        squares = [statistics.mean(last_norm(file) ** 2 for file in step.glob("rank-*")) for step in steps]
    third = len(squares) // 3
    return [statistics.mean(squares[i * third : (i + 1) * third]) for i in range(3)]


def noise(options: argparse.Namespace) -> None:
    results = Results(options.file)
    print("| runs | root of n | ranks' norm over the mean's, first third | second | last | norm of the mean, last |")
    print("|---|---|---|---|---|---|")
    for cell in cells():
        recipe = best_of(results.grid(cell, "allreduce"), 1.0)
        if recipe is None or not re.search(options.only, cell.name("")):
            continue
        mean, own = (
            mean_squares(cell.point(way, recipe[0], 0, cell.seeds[0]), options) for way in ("allreduce", "gossip")
        )
        ratios = " | ".join(f"{math.sqrt(a / b):.2f}" for a, b in zip(own, mean, strict=True))
        print(f"| {cell.name('')}| {math.sqrt(cell.ranks):.2f} | {ratios} | {math.sqrt(mean[-1]):.2f} |", flush=True)


def cost(loss: float | None, aim: float) -> str:
    return "" if loss is None else f"{loss - aim:+.3f}"


def cell_rows(cell: Cell, results: Results) -> Iterator[list[str]]:
    """The cells of the table for each way, with all-reduce's best rate as the recipe, and with half of it."""
    own, root = results.grid(cell, "allreduce"), math.sqrt(cell.ranks)
    best_rate = best_of(own, 1.0)
    if best_rate is None:
        return
    for way in cell.ways:
        grid = results.grid(cell, way)
        best = best_of(grid)
        for rate in (best_rate[0] / 2, best_rate[0]):
            aim = own.get((rate, 1.0))
            if best is None or aim is None:
                continue
            factors = [(1.0, 1.0), (1.0, root), (root, 1.0), (root, root)]
            costs = [cost(grid.get((rounded(rate * a), rounded(b))), aim) for a, b in factors]
            norm = f"{best[1]:.2g}" if best[1] else "none"
            found = f"{cost(grid[best], aim)}: rate x {best[0] / rate:.2g}, norm {norm}"
            yield [cell.name(way), f"{rate:g}", f"{aim:.3f}", *costs, found]


def table(options: argparse.Namespace) -> None:
    results = Results(options.file)
    print("| runs | recipe's rate | all-reduce | x 1, 1 | x 1, root | x root, 1 | x root, root | best of the grid |")
    print("|---|---|---|---|---|---|---|---|")
    for cell in cells():
        for row in cell_rows(cell, results):
            print(f"| {' | '.join(row)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, function in (("run", run), ("table", table), ("switch", switch), ("noise", noise)):
        command = commands.add_parser(name)
        command.add_argument("file", type=Path)
        command.set_defaults(function=function)
        if name != "table":
            command.add_argument("--images", type=Path, required=True)
            command.add_argument("--text", type=Path, required=True)
            command.add_argument("--only", default="")
            command.add_argument("--program", type=Path, default=ROOT / "build/release/gossamer")
    options = parser.parse_args()
    # The run that is under way ends with the study.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    options.function(options)


if __name__ == "__main__":
    main()
