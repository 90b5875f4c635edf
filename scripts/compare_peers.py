#!/usr/bin/env python3
"""Runs gossamer and its peers in turns and prints a table; started by scripts/compare_peers.sh."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

K_ROOT = pathlib.Path(__file__).resolve().parent.parent
K_GOSSAMER = K_ROOT / "build/release/gossamer"
K_RECORD = K_ROOT / "build/compare_peers.jsonl"

# name: model, MiB of a bucket, timed steps of a turn
K_CASES = {
    "mlp": ("mlp", 25, 40),
    "mlp-3mb": ("mlp", 3, 40),
    "gpt": ("gpt", 25, 10),
    "resnet20": ("resnet20", 25, 15),
}
K_PEERS = ["decent-dp", "ddp"]
K_OURS = ["gossip", "compute"]


def command_of(engine, case, ranks):
    model, bucket_mb, steps = K_CASES[case]
    shared = ["--engine", engine, "--model", model, "--bucket-mb", str(bucket_mb),
              "--steps", str(steps), "--topology", "ring", "--threads", "1"]
    if engine in K_OURS:
        return [os.environ.get("MPIEXEC", "mpirun"), "-n", str(ranks), str(K_GOSSAMER), "bench",
                "step", *shared]
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks),
            "--log-dir", str(K_ROOT / "build/peers_log"),
            str(K_ROOT / "scripts/peer_step.py"), *shared]


def measure(engine, case, ranks):
    done = subprocess.run(command_of(engine, case, ranks), capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        sys.exit(f"compare_peers: {engine} on {case} failed:\n{done.stdout}\n{done.stderr}")
    return json.loads(lines[-1])


def interval(values):
    """95 % interval of the median, from order statistics; all of it for fewer than 6 values."""
    values = sorted(values)
    count, chance, below, k = len(values), 0.5 ** len(values), 0.0, 0
    while below + chance <= 0.025:
        below += chance
        chance *= (count - k) / (k + 1)
        k += 1
    first = max(k - 1, 0)
    return values[first], values[count - 1 - first]


def ratio(rows, above, below):
    quotients = [a["step_ms"] / b["step_ms"] for a, b in zip(rows[above], rows[below])]
    low, high = interval(quotients)
    return f"{statistics.median(quotients):.2f} [{low:.2f}, {high:.2f}]"


def run_case(case, ranks, turns, record):
    engines = K_PEERS + K_OURS
    rows = {engine: [] for engine in engines}
    for turn in range(turns):
        # There and back, so that nobody is always the first.
        for engine in engines if turn % 2 == 0 else engines[::-1]:
            row = measure(engine, case, ranks)
            rows[engine].append(row)
            record.write(json.dumps({"case": case, "turn": turn, **row}) + "\n")
            record.flush()
        print(f"{case}: turn {turn + 1} of {turns}", file=sys.stderr)
    return rows


def line_of(case, rows):
    cells = [case]
    cells += [f"{statistics.median([row['step_ms'] for row in rows[engine]]):.1f}"
              for engine in K_PEERS + K_OURS]
    cells += [ratio(rows, "decent-dp", "gossip"), ratio(rows, "ddp", "gossip"),
              ratio(rows, "gossip", "compute")]
    cells += [str(round(statistics.median([max(row["peak_rss_mb"]) for row in rows[engine]])))
              for engine in ["decent-dp", "gossip"]]
    return "| " + " | ".join(cells) + " |"


def processor():
    try:
        for line in open("/proc/cpuinfo", encoding="utf-8"):
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--cases", default=",".join(K_CASES))
    args = parser.parse_args()
    cases = args.cases.split(",")
    for case in cases:
        if case not in K_CASES:
            parser.error(f"there is no case {case}, allowed: {', '.join(K_CASES)}")
    K_RECORD.parent.mkdir(exist_ok=True)
    lines = []
    with open(K_RECORD, "w", encoding="utf-8") as record:
        for case in cases:
            lines.append(line_of(case, run_case(case, args.ranks, args.turns, record)))
    print(f"{datetime.date.today()}, {processor()}, {os.cpu_count()} cores, {args.ranks} ranks, "
          f"1 thread each, {args.turns} turns; ms per step, medians; ratios with the 95 % interval "
          "of their median; peak memory of a process in MB\n")
    print("| model | decent-dp | DDP | gossamer | forward + backward alone | decent-dp / gossamer "
          "| DDP / gossamer | gossamer / alone | memory decent-dp | memory gossamer |")
    print("|---" * 10 + "|")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
