#!/usr/bin/env python3
"""Kills ranks of a run, and lets others join, as long as it trains. An undisturbed run trains beside it.

    scripts/chaos.py build/release/gossamer configs/quickstart.yaml --steps 200000 --every 15

Prints both losses of the mean model, the deaths and joins, and the goodput: the share of the time that was not lost.
Runs in the present folder are chaos/calm and chaos/wild, which must not exist. Exit code 1: a rank that nobody has
killed has failed, or the losses differ by more than --tolerance. Further arguments are settings of both runs.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

K_FEWEST = 3
# Seconds in which a rank that has joined ends with the others.
K_FAREWELL_S = 10


class Run:
    """Ranks that meet in a folder."""

    def __init__(self, options: argparse.Namespace, name: str) -> None:
        self.folder = Path("chaos") / name
        store = self.folder / "store"
        store.mkdir(parents=True)
        self.out = self.folder / "out"
        secret = subprocess.run([options.program, "secret"], capture_output=True, text=True, check=True).stdout.strip()
        self.environment = os.environ | {"GOSSAMER_SECRET": secret}
        self.command = [options.program, "train", options.config, "fault.mode=survive", f"run.steps={options.steps}"]
        self.command += [f"run.output_dir={self.out}", "log.level=warning", *options.more]
        self.place = f"file:{store}"
        self.jobs: list[subprocess.Popen] = []
        self.killed: set[int] = set()
        self.joined: list[int] = []

    def begin(self, size: int) -> None:
        for rank in range(size):
            self.add("--rendezvous", self.place, "--world-size", str(size), "--rank", str(rank))

    def add(self, *arguments: str) -> None:
        log = (self.folder / f"{len(self.jobs)}.log").open("w")
        self.jobs.append(subprocess.Popen([*self.command, *arguments], env=self.environment, stdout=log, stderr=log))

    def status(self) -> dict:
        try:
            return json.loads((self.out / "status.json").read_text())
        except (OSError, json.JSONDecodeError):
            return {}

    def running(self) -> list[subprocess.Popen]:
        return [job for job in self.jobs if job.poll() is None]

    def is_training(self) -> bool:
        return bool(self.running()) and self.status().get("state", "running") == "running"

    def kill_one(self, chance: random.Random) -> None:
        victim = chance.choice(self.running())
        self.killed.add(victim.pid)
        victim.send_signal(signal.SIGKILL)

    def join_one(self) -> None:
        self.add("--join", self.place)
        self.joined.append(self.jobs[-1].pid)

    def final(self) -> dict:
        """The last record. Ends the program where a rank has failed that this script has not killed."""
        while self.is_training():
            time.sleep(0.05)
        # The last one may have come when the run had just ended, and would wait for others.
        excused = self.killed | set(self.joined[-1:])
        for job in self.jobs:
            try:
                job.wait(timeout=K_FAREWELL_S if job.pid in excused else None)
            except subprocess.TimeoutExpired:
                job.kill()
                job.wait()
        failures = [
            f"chaos.py: {self.folder}/{i}.log: exit code {job.returncode}"
            for i, job in enumerate(self.jobs)
            if job.returncode != 0 and job.pid not in excused
        ]
        if failures:
            sys.exit("\n".join(failures))
        lines = (self.out / "metrics.jsonl").read_text().splitlines()
        for record in map(json.loads, lines):
            if record["kind"] == "final":
                return record
        codes = [job.returncode for job in self.jobs]
        logs = "".join(path.read_text() for path in sorted(self.folder.glob("*.log")))
        sys.exit(f"{logs}chaos.py: {self.out} has no final record: {self.status()}, exit codes {codes}")


def disturb(run: Run, options: argparse.Namespace) -> tuple[int, int]:
    """Until the run ends. Returns the numbers of deaths and joins."""
    chance = random.Random(options.seed)
    deaths = joins = 0
    event = time.monotonic() + options.every
    # How many members the run has when it knows of all deaths and joins, and a change of members before that.
    expected, epoch = options.ranks, -1
    while run.is_training():
        time.sleep(0.05)
        if time.monotonic() < event:
            continue
        event += options.every
        status = run.status()
        members = len(status.get("members", []))
        is_settled = members == expected and status.get("epoch", -1) > epoch
        dies = expected > K_FEWEST and (expected > options.ranks or chance.random() < 0.5)
        # A second death before the members know of the first one may leave no majority. A process that joins meanwhile
        # takes none away.
        if dies and is_settled:
            run.kill_one(chance)
            deaths += 1
        elif not dies and expected <= members:
            run.join_one()
            joins += 1
        else:
            continue
        expected += -1 if dies else 1
        epoch = status.get("epoch", -1)
    return deaths, joins


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("config")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--ranks", type=int, default=4, help="4 or more; from 3 to so many and one are there at a time")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between two events")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tolerance", type=float, default=0.02, help="part of the loss by which the runs may differ")
    parser.add_argument("more", nargs="*", help="settings of both runs, as optimizer.lr=0.01")
    options = parser.parse_args()
    if options.ranks <= K_FEWEST:
        sys.exit("chaos.py: --ranks: 4 or more")

    calm = Run(options, "calm")
    wild = Run(options, "wild")
    try:
        calm.begin(options.ranks)
        wild.begin(options.ranks)
        began = time.monotonic()
        deaths, joins = disturb(wild, options)
        seconds = time.monotonic() - began
        loss = wild.final()["loss_mean_model"]
        quiet_loss = calm.final()["loss_mean_model"]
    finally:
        for job in calm.running() + wild.running():
            job.kill()
    difference = (loss - quiet_loss) / quiet_loss
    print(f"undisturbed: loss {quiet_loss:.4f}")
    print(f"disturbed:   loss {loss:.4f} ({100 * difference:+.2f} %), {seconds:.0f} s, {deaths} deaths, {joins} joins")
    print(f"goodput:     {100 * wild.status()['goodput']:.2f} %")
    sys.exit(1 if abs(difference) > options.tolerance else 0)


if __name__ == "__main__":
    main()
