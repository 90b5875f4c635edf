#!/usr/bin/env python3
"""Training on a GPU, compared with training on processors. How to run it: cli_case.py.

Skipped where the program sees no GPU.
"""

import sys

import cli_case
from cli_case import CliCase, needs_mpi


class Gpu(CliCase):

    def losses(self, device, ranks, mpi=False):
        """The mean losses of the steps; skips the test where there is no GPU."""
        arguments = ["tiny.yaml", f"device.name={device}", "device.share=true", "log.every=1",
                     f"run.output_dir={device}"]
        if device == "cuda":
            done = self.gossamer("train", *arguments, "--ranks", "1", "--dry-run", code=None)
            for missing in "sees no GPU", "cannot be loaded":
                if done.returncode != 0 and missing in done.stderr:
                    self.skipTest(done.stderr)
        if mpi:
            self.mpirun(ranks, "train", *arguments)
        else:
            self.gossamer("train", *arguments, "--ranks", str(ranks))
        return [record["loss"] for record in self.records(device) if record["kind"] == "step"]

    def check_like_processors(self, ranks, mpi=False):
        on_gpu = self.losses("cuda", ranks, mpi)
        on_processors = self.losses("cpu", ranks, mpi)
        self.assertEqual(len(on_gpu), 8)
        for ours, theirs in zip(on_gpu, on_processors, strict=True):
            self.assertAlmostEqual(ours, theirs, delta=1e-3)

    def test_trains_like_processors(self):
        self.check_like_processors(1)

    @needs_mpi
    def test_is_shared_by_two_ranks_under_mpirun(self):
        self.check_like_processors(2, mpi=True)


if __name__ == "__main__":
    sys.exit(cli_case.main())
