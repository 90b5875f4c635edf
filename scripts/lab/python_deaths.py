#!/usr/bin/env python3
"""Compares the loss of a Python loop whose ranks die with the loss of undisturbed runs.

    export PYTHONPATH=build/python/package
    build/python-venv/bin/python scripts/lab/python_deaths.py --seeds 3 --out runs/deaths

All runs make the same number of optimizer steps, and each step has the same samples, whatever the number of ranks: the
ranks share the step's samples. In the disturbed run four ranks die by `kill -9` at random moments, and after each death
a new rank joins. The undisturbed runs have four ranks, and three. Prints a row for each seed and the medians.
"""

import argparse
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

SIZE, DEATHS, STEPS = 4, 4, 2000
# Of one step of all ranks.
SAMPLES = 48
NUM_SAMPLES = 20_000
PAUSE_S, WAIT_S = 0.008, 0.5
ALGORITHMS = {
    "gossip": {"topology": "base-k"},
    "outer": {"algorithm": {"name": "outer", "every": 4}},
    "allreduce": {"algorithm": "allreduce"},
}


# ---- a rank --------------------------------------------------------------------------------------


def train(algorithm: str, optimizer: str, seed: int) -> None:
    import torch
    from torch import nn

    import gossamer as gs

    gs.initialize_dist(survive=True, silence_s=5)
    torch.set_num_threads(1)
    data = torch.Generator().manual_seed(7)
    x = torch.randn(2 * NUM_SAMPLES, 20, generator=data)
    teacher = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 5))
    for p in teacher.parameters():
        p.data = torch.randn(p.shape, generator=data)
    with torch.no_grad():
        y = torch.multinomial(teacher(x).softmax(1), 1, generator=data).squeeze(1)
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    model = gs.DecentralizedDataParallel(
        net, lambda ps: getattr(torch.optim, optimizer)(ps, lr=2e-3), **ALGORITHMS[algorithm]
    )
    session = model.session
    lost_at = []

    def note(change: gs.MembershipChange) -> None:
        lost_at[:] = [change.step] if len(change.members) < SIZE else []

    session.on_change(note)

    while model.num_steps < STEPS:
        step = model.num_steps
        epoch, place = divmod(step, NUM_SAMPLES // SAMPLES)
        order = torch.randperm(NUM_SAMPLES, generator=torch.Generator().manual_seed(1000 * seed + epoch))
        own = order[place * SAMPLES : (place + 1) * SAMPLES][session.rank :: session.world_size]
        nn.functional.cross_entropy(model(x[own]), y[own]).backward()
        print("step", step, len(own), flush=True)
        # A rank that joins needs seconds to start, and may need minutes on a busy machine.
        waits = any(model.num_steps > step + STEPS // 10 for step in lost_at)
        time.sleep(WAIT_S if waits else PAUSE_S)

    with model.global_average(), torch.no_grad():
        losses = [
            nn.functional.cross_entropy(net(x[part]), y[part]).item()
            for part in (slice(NUM_SAMPLES), slice(NUM_SAMPLES, None))
        ]
    print("end", *losses, flush=True)


# ---- a run ---------------------------------------------------------------------------------------


class Run:
    """Ranks that meet in a folder."""

    def __init__(self, folder: Path, words: list[str], size: int) -> None:
        self.folder = folder
        (folder / "store").mkdir(parents=True)
        self.command = [sys.executable, __file__, "--rank-of", *words]
        self.jobs: list[subprocess.Popen] = []
        self.place = f"file:{folder / 'store'}"
        for rank in range(size):
            self.add(GOSSAMER_RENDEZVOUS=self.place, GOSSAMER_WORLD_SIZE=str(size), GOSSAMER_RANK=str(rank))

    def add(self, **more: str) -> None:
        secret = "the secret of runs whose ranks die"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GOSSAMER_SECRET": secret, **more}
        log = (self.folder / f"{len(self.jobs)}.log").open("w")
        self.jobs.append(subprocess.Popen(self.command, env=environment, stdout=log, stderr=log))

    def lines(self, job: int, word: str) -> list[list[str]]:
        with contextlib.suppress(OSError):
            words = [line.split() for line in (self.folder / f"{job}.log").read_text().splitlines()]
            return [line[1:] for line in words if line[:1] == [word] and len(line) == 3]
        return []

    def running(self) -> list[int]:
        return [i for i, job in enumerate(self.jobs) if job.poll() is None]

    def disturb(self, chance: random.Random) -> None:
        moments = [(k + 0.5 + 0.4 * chance.random()) * STEPS / (DEATHS + 1) for k in range(DEATHS)]
        while self.running() and moments:
            time.sleep(0.03 * chance.random())
            training = [i for i in self.running() if self.lines(i, "step")]
            if len(training) < SIZE or int(self.lines(training[0], "step")[-1][0]) < moments[0]:
                continue
            moments.pop(0)
            victim = self.jobs[chance.choice(training)]
            victim.kill()
            # Two at once would leave no majority of four.
            victim.wait()
            self.add(GOSSAMER_JOIN=self.place)
        if moments:
            sys.exit(f"{self.folder}: ended before {len(moments)} deaths")

    def end(self) -> tuple[float, float, int]:
        """Return the losses of training and test data, and the samples with which ranks have trained."""
        while self.running() and all(job.poll() != 0 for job in self.jobs):
            time.sleep(0.1)
        for i in self.running():
            # One that joins too late would wait for the others.
            if not self.lines(i, "step"):
                self.jobs[i].kill()
        codes = [job.wait() for job in self.jobs]
        if any(code not in (0, -signal.SIGKILL) for code in codes):
            sys.exit(f"{self.folder}: exit codes {codes}")
        ends = [self.lines(i, "end")[0] for i, code in enumerate(codes) if code == 0]
        if ends != [ends[0]] * len(ends):
            sys.exit(f"{self.folder}: losses {ends}")
        samples = sum(int(line[1]) for i in range(len(codes)) for line in self.lines(i, "step"))
        return float(ends[0][0]), float(ends[0][1]), samples


def compare(out: Path, algorithm: str, optimizer: str, seed: int) -> list[float]:
    ends = []
    # One run after the other, for their ranks share the processors.
    for name, size in (("killed", SIZE), ("four", SIZE), ("three", SIZE - 1)):
        run = Run(out / f"{algorithm}-{optimizer}-{seed}-{name}", [algorithm, optimizer, str(seed)], size)
        try:
            if name == "killed":
                run.disturb(random.Random(seed))
            ends.append(run.end())
        finally:
            for i in run.running():
                run.jobs[i].kill()
    (loss, test, samples), (four, test_four, all_samples), (three, test_three, _) = ends
    print(
        f"{algorithm:9} {optimizer:8} seed {seed}: samples {samples} of {all_samples}; training loss {loss:.4f}, "
        f"undisturbed {four:.4f}, of three ranks {three:.4f}; test loss {test:.4f}, undisturbed {test_four:.4f}, "
        f"of three ranks {test_three:.4f}",
        flush=True,
    )
    return [100 * (a / b - 1) for a, b in ((loss, four), (test, test_four), (three, four), (test_three, test_four))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for logs, which must not exist")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS))
    parser.add_argument("--optimizer", default="AdamW", help="a class of torch.optim; others than AdamW run in Python")
    parser.add_argument("--rank-of", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        train(options.rank_of[0], options.rank_of[1], int(options.rank_of[2]))
        return
    for algorithm in options.algorithms.split(","):
        rows = [compare(options.out, algorithm, options.optimizer, seed) for seed in range(1, options.seeds + 1)]
        killed, killed_test, three, three_test = (statistics.median(column) for column in zip(*rows))
        worst = max(abs(value) for row in rows for value in row[:2])
        print(
            f"{algorithm:9} {options.optimizer:8} median: training loss {killed:+.2f} %, test loss {killed_test:+.2f} %, "
            f"largest difference {worst:.2f} %; three ranks {three:+.2f} %, {three_test:+.2f} %",
            flush=True,
        )


if __name__ == "__main__":
    main()
