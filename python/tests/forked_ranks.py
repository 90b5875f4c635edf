"""Starts the ranks of a job, as torchrun does, and prints the code, output and errors of each.

The ranks are forks of this process, which imports PyTorch once for all of them. A rank runs the
program that the first argument names, and ends as that program does.
"""

from __future__ import annotations

import json
import os
import pathlib
import runpy
import signal
import sys

import torch._dynamo
import torch.distributed.fsdp  # noqa: F401


def become(rank: int, files: tuple[int, int]) -> None:
    """Give this process what a rank has of its own."""
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
    for descriptor, file in enumerate(files, 1):
        os.dup2(file, descriptor)
    sys.argv = sys.argv[1:]


def text_of(file: int) -> str:
    return pathlib.Path(f"/proc/self/fd/{file}").read_text()


def main() -> None:
    files = [
        (os.memfd_create("output"), os.memfd_create("errors"))
        for _ in range(int(os.environ["WORLD_SIZE"]))
    ]
    ranks: list[int] = []
    for rank, own in enumerate(files):
        ranks.append(os.fork())
        if ranks[-1] == 0:
            become(rank, own)
            runpy.run_path(sys.argv[0], run_name="__main__")
            return
    # The tests end ranks that hang, and want to see what they have said.
    signal.signal(signal.SIGTERM, lambda *_: [os.kill(rank, signal.SIGKILL) for rank in ranks])
    # A rank keeps its number until all have ended.
    for rank in ranks:
        os.waitid(os.P_PID, rank, os.WEXITED | os.WNOWAIT)
    codes = [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
    json.dump(
        [(code, text_of(out), text_of(err)) for code, (out, err) in zip(codes, files, strict=True)],
        sys.stdout,
    )


if __name__ == "__main__":
    main()
