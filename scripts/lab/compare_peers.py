#!/usr/bin/env python3
"""Runs gossamer and its peers in turns and prints a table; started by scripts/lab/compare_peers.sh."""
import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys

K_ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
K_BENCH_STEP = [str(K_ROOT / "build/release/gossamer"), "bench", "step"]
K_PEER_STEP = str(K_ROOT / "scripts/lab/peer_step.py")
K_RECORD = K_ROOT / "build/compare_peers.jsonl"

# name: model, MiB of a bucket, timed steps of a turn
K_CASES = {
    "mlp": ("mlp", 25, 40),
    "mlp-3mb": ("mlp", 3, 40),
    "mlp-1mb": ("mlp", 1, 40),
    "gpt": ("gpt", 25, 10),
    "resnet20": ("resnet20", 25, 15),
}
K_PEERS = ["decent-dp", "ddp", "ddp-bf16"]
# Engines of gossamer with a codec: engine and codec for `bench step`. The first 16 rounds of int8 send
# plain blocks, so they come before the timed steps.
K_WARMUP = {"int8": 20}
K_CODECS = {"gossip-bf16": ("gossip", "bf16"), "gossip-int8": ("gossip", "int8"),
            "allreduce-bf16": ("allreduce", "bf16"), "allreduce-int8": ("allreduce", "int8")}


class Machine:
    """Ranks on this machine."""

    engines = ["decent-dp", "ddp", "python", "gossip", "compute"]
    # The steps of a turn are alike, so their median leaves out what else the machine has done.
    time = "step_ms"
    tables_memory = True

    def __init__(self, ranks):
        self.ranks = ranks

    def __str__(self):
        return f"{self.ranks} ranks"

    def command(self, engine):
        if engine in K_PEERS:
            return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(self.ranks),
                    "--log-dir", str(K_ROOT / "build/peers_log"), K_PEER_STEP]
        program = [sys.executable, K_PEER_STEP] if engine == "python" else K_BENCH_STEP
        return [os.environ.get("MPIEXEC", "mpirun"), "-n", str(self.ranks), *program]


class Hosts:
    """One rank on each of several hosts with a slow network (scripts/hosts.sh)."""

    engines = ["decent-dp", "ddp", "ddp-bf16", "gossip", "gossip-bf16", "gossip-int8", "allreduce",
               "allreduce-bf16", "allreduce-int8", "compute"]
    # On a ring the peer changes in every step, and steps with one peer take longer than those with
    # the other. The median would show one kind alone.
    time = "mean_ms"
    tables_memory = False

    def __init__(self, hosts, rate):
        self.ranks, self.rate = hosts, rate

    def __str__(self):
        return f"{self.ranks} hosts with {self.rate} each, 1 rank on each"

    def command(self, engine):
        program = [sys.executable, K_PEER_STEP] if engine in K_PEERS else K_BENCH_STEP
        return [str(K_ROOT / "scripts/hosts.sh"), "--hosts", str(self.ranks), "--rate", self.rate, "mpirun", *program]


def measure(place, engine, case, topology):
    model, bucket_mb, steps = K_CASES[case]
    name, codec = K_CODECS.get(engine, (engine, ""))
    arguments = ["--engine", "gossamer" if name == "python" else name, *(["--codec", codec] if codec else [])]
    arguments += ["--model", model, "--bucket-mb", str(bucket_mb), "--warmup", str(K_WARMUP.get(codec, 5))]
    arguments += ["--steps", str(steps), "--topology", topology, "--threads", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(K_ROOT / "build/python/package")}
    done = subprocess.run([*place.command(engine), *arguments], capture_output=True, text=True, env=environment, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        sys.exit(f"compare_peers: {engine} on {case} failed:\n{done.stdout}\n{done.stderr}")
    return json.loads(lines[-1])


def ratio(rows, above, below, time):
    """The median of the turns' ratios, with the least and the largest."""
    quotients = [a[time] / b[time] for a, b in zip(rows[above], rows[below])]
    return f"{statistics.median(quotients):.2f} [{min(quotients):.2f}, {max(quotients):.2f}]"


def run_case(place, case, args, record):
    rows = {engine: [] for engine in place.engines}
    for turn in range(args.turns):
        # There and back, so that no engine is always the first.
        for engine in place.engines if turn % 2 == 0 else place.engines[::-1]:
            row = measure(place, engine, case, args.topology)
            rows[engine].append(row)
            record.write(json.dumps({"started": args.started, "place": str(place), "case": case,
                                     "turn": turn, "asked_topology": args.topology,
                                     "asked_engine": engine, **row}) + "\n")
            record.flush()
        print(f"{case}: turn {turn + 1} of {args.turns}", file=sys.stderr)
    return rows


def table(place, rows_of_cases):
    """Milliseconds of every engine, then ratios of them."""
    names = {"ddp": "DDP", "ddp-bf16": "DDP, bf16", "gossip": "gossamer",
             "python": "gossamer, Python",
             "gossip-bf16": "gossamer, bf16", "gossip-int8": "gossamer, int8",
             "allreduce": "gossamer, all-reduce", "allreduce-bf16": "gossamer, all-reduce, bf16",
             "allreduce-int8": "gossamer, all-reduce, int8", "compute": "forward + backward alone"}
    others = [engine for engine in place.engines if engine not in ("gossip", "compute")]
    memory = ["decent-dp", "gossip"] if place.tables_memory else []
    heads = ["model", *(names.get(engine, engine) for engine in place.engines),
             *(f"{names.get(other, other)} / gossamer" for other in others), "gossamer / alone",
             *(f"memory {names.get(engine, engine)}" for engine in memory)]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for case, rows in rows_of_cases.items():
        cells = [case]
        cells += [f"{statistics.median(row[place.time] for row in rows[engine]):.1f}"
                  for engine in place.engines]
        cells += [ratio(rows, other, "gossip", place.time) for other in others]
        cells += [ratio(rows, "gossip", "compute", place.time)]
        cells += [str(round(statistics.median(max(row["peak_rss_mb"]) for row in rows[engine])))
                  for engine in memory]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def processor():
    lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "a processor")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--hosts", type=int)
    parser.add_argument("--rate")
    parser.add_argument("--topology", default="ring")
    parser.add_argument("--cases", default="mlp,mlp-3mb,gpt,resnet20")
    args = parser.parse_args()
    args.started = datetime.datetime.now().isoformat(timespec="seconds")
    cases = args.cases.split(",")
    for case in cases:
        if case not in K_CASES:
            parser.error(f"there is no case {case}, allowed: {', '.join(K_CASES)}")
    if args.rate and not args.hosts:
        parser.error("--rate needs --hosts")
    if args.ranks and args.hosts:
        parser.error("--hosts has one rank on each host; leave out --ranks")
    place = Hosts(args.hosts, args.rate or "500mbit") if args.hosts else Machine(args.ranks or 2)
    K_RECORD.parent.mkdir(exist_ok=True)
    with open(K_RECORD, "a", encoding="utf-8") as record:
        rows = {case: run_case(place, case, args, record) for case in cases}
    unit = {"step_ms": "median ms", "mean_ms": "mean ms"}[place.time]
    print(f"{datetime.date.today()}, {processor()}, {os.cpu_count()} cores, {place}, "
          f"{args.topology}, 1 thread each, {args.turns} turns; {unit} per step, medians of the "
          "turns; ratios with the least and the largest"
          + ("; peak memory of a process in MB" if place.tables_memory else "") + "\n")
    print(table(place, rows))


if __name__ == "__main__":
    main()
