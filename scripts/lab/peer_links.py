#!/usr/bin/env python3
"""Exchanges and sums over gloo, timed: the other side of `gossamer bench links --sums`.

    torchrun --nproc-per-node 2 scripts/lab/peer_links.py
    scripts/hosts.sh --hosts 2 --rate 200mbit --latency 50ms mpirun build/python-venv/bin/python scripts/lab/peer_links.py

Two ranks exchange blocks in both directions at once. The blocks follow one another without a pause in a train of at least
40 round trips, and those of the first 15 do not count (apps/lab/plan/pair_timer.hpp). Then come sums of such blocks, one
after the other. Prints one JSON line with the keys of `gossamer bench links --json`. Needs torch.
"""
import argparse
import json
import os
import statistics
import time
from collections import deque

import torch
import torch.distributed as dist

from peer_step import join_gloo

WARM_UP = 2
WINDOW_BYTES = 64 << 20
LEAST_EXCHANGES, START_EXCHANGES = 40.0, 15.0
# Of a train: the blocks under way at its begin and at its end are not exactly as far.
LEAST_S = 3.0


def run_train(sent, received, length):
    """Seconds from the begin until each block was there. While they end, equally many are under way."""
    peer = 1 - dist.get_rank()
    dist.barrier()
    begin = time.perf_counter()
    under_way, ends = deque(), []

    def end_first():
        for work in under_way.popleft():
            work.wait()
        ends.append(time.perf_counter() - begin)

    window = min(length, len(received))
    for index in range(1 if length == 1 else length + window):
        if len(under_way) == window:
            end_first()
        under_way.append((dist.isend(sent, peer), dist.irecv(received[index % window], peer)))
    while under_way:
        end_first()
    return ends[:length]


def agreed(value):
    number = torch.tensor([value], dtype=torch.float64)
    dist.broadcast(number, 0)
    return float(number)


def steady_block_s(sent, small_s):
    received = [torch.empty_like(sent) for _ in range(max(3, min(64, WINDOW_BYTES // sent.numel())))]
    length = 4
    while True:
        ends = run_train(sent, received, length)
        missing = agreed(max(LEAST_EXCHANGES * small_s, LEAST_S) / ends[-1])
        if missing <= 1.0:
            break
        length = int(1.2 * missing * length) + 1
    start = next((end for end in ends[:-1] if end >= START_EXCHANGES * small_s), ends[-2])
    return (ends[-1] - start) / (length - 1 - ends.index(start))


def time_of(work):
    dist.barrier()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def median_s(measure, count):
    seconds = [measure() for _ in range(WARM_UP + count)]
    return agreed(statistics.median(seconds[WARM_UP:]))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=16 << 20)
    parser.add_argument("--pings", type=int, default=10)
    parser.add_argument("--transfers", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    join_gloo()
    small = torch.zeros(8, dtype=torch.uint8)
    small_s = median_s(lambda: run_train(small, [small.clone()], 1)[0], args.pings)
    block_s = steady_block_s(torch.zeros(args.bytes, dtype=torch.uint8), small_s)
    block = torch.zeros(args.bytes // 4)
    sum_s = median_s(lambda: time_of(lambda: dist.all_reduce(block)), args.transfers)
    if dist.get_rank() == 0:
        print(json.dumps({"between": {"latency_s": small_s, "bandwidth_bytes_per_s": args.bytes / block_s},
                          "backend": "gloo", "sum": {"bytes": args.bytes, "seconds": sum_s}}), flush=True)
    dist.barrier()
    # gloo's threads now and then abort the interpreter when it ends in the ordinary way.
    os._exit(0)


if __name__ == "__main__":
    main()
