#!/usr/bin/env python3
"""Exports a model and data of one's own for gossamer train. Needs Python packages torch and numpy
(docs/guide/own-models.md says how to get them).

    examples/torchscript/export.py FOLDER

FOLDER gets net.pt, the model as TorchScript, and the arrays of a small regression: the
temperature at three places, from the day of the year and the hour.
"""

import pathlib
import sys

try:
    import numpy
    import torch
except ImportError as error:
    sys.exit(f"export.py: {sys.executable} cannot import torch and numpy: {error}\n"
             "Take a Python that has torch and numpy: docs/guide/own-models.md says how to get one.")


class Net(torch.nn.Module):
    """Any module that torch.jit.script accepts. gossamer calls forward(inputs); inputs are
    float32 of [batch, channels, height, width], here [batch, 1, 1, 4]. The outputs are
    [batch, numbers to predict], here [batch, 3]."""

    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(4, 64)
        self.dropout = torch.nn.Dropout(0.1)
        self.output = torch.nn.Linear(64, 3)

    def forward(self, inputs):
        x = torch.relu(self.hidden(inputs.flatten(1)))
        return self.output(self.dropout(x))


def make_arrays(count, seed):
    random = numpy.random.default_rng(seed)
    year = random.uniform(0, 2 * numpy.pi, count)
    day = random.uniform(0, 2 * numpy.pi, count)
    inputs = numpy.stack([numpy.sin(year), numpy.cos(year), numpy.sin(day), numpy.cos(day)], 1)
    targets = numpy.stack([-numpy.cos(year - lag) - swing * numpy.cos(day)
                           for lag, swing in [(0.3, 0.2), (0.5, 0.5), (0.9, 0.1)]], 1)
    return inputs.astype("<f4"), targets.astype("<f4")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    torch.jit.script(Net()).save(str(folder / "net.pt"))
    for part, count, seed in [("train", 4000, 1), ("val", 500, 2)]:
        inputs, targets = make_arrays(count, seed)
        numpy.save(folder / f"{part}_inputs.npy", inputs)
        numpy.save(folder / f"{part}_targets.npy", targets)


if __name__ == "__main__":
    main()
