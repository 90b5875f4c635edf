#!/usr/bin/env python3
"""Tries what theory says about all-reduce's recipe under gossip, with all ranks in one process.

    scripts/lab/recipe_theory.py run FILE --text TEXT [--ranks N] [--rates RATE ...] [--seeds N] [--ways WAY ...]
    scripts/lab/recipe_theory.py table FILE

`run` trains a small gpt on TEXT (tinyshakespeare) with AdamW, for each way of WAYS. It needs PyTorch alone. The ranks
are rows of one matrix, so that every rank's gradient, their mean and all moments are at hand. A JSON line for each
finished run goes to FILE, and runs that FILE has are left out.

`table` prints the validation losses of the mean model, as means over the seeds, and the quotient.

The quotient is the root mean square length of the ranks' gradients divided by the length of their mean gradient. It
lies between 1, where ranks have one gradient, and the root of their number, where gradients are noise alone.
"""

import argparse
import json
import math
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CONTEXT = 64
BETA1, BETA2, EPS, DECAY = 0.9, 0.999, 1e-8, 0.01
WARM_UP = 20
# Of the quotient's two averages.
MEMORY = 0.98
SAMPLED, SAMPLE_EVERY = 64, 10
WAYS = {
    "allreduce": "all ranks have the mean gradient",
    "gossip": "the recipe as it is",
    "root": "rate and norm times the root of the ranks",
    "quotient": "rate and norm times the quotient of the last steps",
    "at end": "the recipe as it is; the ranks mix after the update, and before the next gradients",
    "quotient at end": "the same, and rate and norm times the quotient",
    "by tensor": "as quotient, but each tensor's rate times a quotient of its own",
    "mixed momenta": "as quotient, and the first moments are mixed as the models are",
    "ahead": "as quotient, and gradients are those of a model that is half an own update ahead",
    "sampled": f"the quotient is that of one element of {SAMPLED}, in every {SAMPLE_EVERY}th step",
    "corrected": "second moments without the noise that a mean of all ranks would not have, by own gradients alone",
    "mean moments": "second moments of the mean gradient, as if gradients were averaged in every step",
    "all mixed": "mean moments, and models mixed with those of all ranks in every step",
    "rare moments": f"as mean moments, but averaged in every {SAMPLE_EVERY}th step and while warming up",
}
BY_QUOTIENT = ("quotient", "quotient at end", "mixed momenta", "ahead")
OF_MOMENTS = ("corrected", "mean moments", "all mixed", "rare moments")


@dataclass(frozen=True)
class Run:
    """A run of one way. `batch`: texts of one rank in a step."""

    way: str
    ranks: int
    rate: float
    norm: float
    seed: int
    batch: int
    steps: int


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Gpt(nn.Module):
    def __init__(self, num_letters: int, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(num_letters, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, num_letters)
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                nn.init.normal_(part.weight, std=0.02)

    def loss(self, values: Tensor, letters: Tensor) -> Tensor:
        """Return the mean loss of texts [count, CONTEXT + 1], with the parameters `values`."""
        at = 0
        for p in self.parameters():
            p.data = values[at : at + p.numel()].view_as(p)
            at += p.numel()
        x = self.letters(letters[:, :-1]) + self.places.weight
        return F.cross_entropy(self.head(self.norm(self.blocks(x))).flatten(0, 1), letters[:, 1:].flatten())


def draw(text: Tensor, count: int, generator: torch.Generator) -> Tensor:
    starts = torch.randint(len(text) - CONTEXT - 1, (count,), generator=generator)
    return torch.stack([text[i : i + CONTEXT + 1] for i in starts])


class Quotient:
    """The quotient over the last steps."""

    def __init__(self, ranks: int) -> None:
        self._most = math.sqrt(ranks)
        self._sums = [0.0, 0.0]

    def add(self, gradients: Tensor) -> None:
        squares = [gradients.square().sum(1).mean().item(), gradients.mean(0).square().sum().item()]
        self._sums = [MEMORY * old + new for old, new in zip(self._sums, squares, strict=True)]

    @property
    def value(self) -> float:
        return min(max(math.sqrt(self._sums[0] / max(self._sums[1], 1e-30)), 1.0), self._most)


def without_noise(gradients: Tensor, mean: Tensor, step: int) -> Tensor:
    """Return what the square of the mean gradient is on average, from each rank's own gradients.

    A first moment holds the noise of one gradient times `kept`. So its square minus that part of the gradient's own
    square is the square of the signal on average, and the rest is noise.
    """
    ranks = len(gradients)
    kept = (1 - BETA1) / (1 + BETA1) * (1 + BETA1**step) / (1 - BETA1**step)
    squares = gradients.square()
    if step == 1:
        return squares
    signal = (mean.square() - kept * squares) / (1 - kept)
    return torch.maximum(squares / ranks + (1 - 1 / ranks) * signal, squares / ranks)


class Adam:
    """AdamW of all ranks, a row each, with the second moments of a way."""

    def __init__(self, way: str, shape: torch.Size) -> None:
        self._way = way
        self._first, self._second = torch.zeros(shape), torch.zeros(shape)
        # What is left of the zeros with which the second moments begin.
        self._left = 1.0

    def mix(self, partners: Tensor) -> None:
        self._first = 0.5 * (self._first + self._first[partners])

    def update(
        self, x: Tensor, g: Tensor, mean_gradient: Tensor, step: int, rates: tuple[float | Tensor, float]
    ) -> Tensor:
        """Return the next x. `rates`: that of the gradients and that of the decay."""
        self._first.mul_(BETA1).add_(g, alpha=1 - BETA1)
        first = self._first / (1 - BETA1**step)
        keep, square = BETA2, g.square()
        if self._way == "corrected":
            square = without_noise(g, first, step)
        elif self._way in OF_MOMENTS:
            square = mean_gradient.square()
        if self._way == "rare moments" and step > WARM_UP:
            keep = BETA2**SAMPLE_EVERY if step % SAMPLE_EVERY == 0 else 1.0
        self._second.mul_(keep).add_(square, alpha=1 - keep)
        self._left *= keep
        return x * (1 - rates[1] * DECAY) - rates[0] * first / ((self._second / (1 - self._left)).sqrt() + EPS)


def gradients_of(model: Gpt, x: Tensor, text: Tensor, batch: int, generators: list[torch.Generator]) -> Tensor:
    """Return the gradient of each rank, a row each."""
    rows = []
    for values, generator in zip(x, generators, strict=True):
        model.zero_grad(set_to_none=True)
        model.loss(values.clone(), draw(text, batch, generator)).backward()
        rows.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    return torch.stack(rows)


def train(run: Run, train_text: Tensor, val_text: Tensor, num_letters: int) -> dict:
    """Return the run with the loss of the mean model, and the quotient's means over the thirds of the run."""
    torch.manual_seed(run.seed)
    model = Gpt(num_letters)
    sizes = [p.numel() for p in model.parameters()]
    x = torch.cat([p.detach().flatten() for p in model.parameters()]).repeat(run.ranks, 1)
    # The model at which the next gradients are computed.
    at = x
    by_tensor = [Quotient(run.ranks) for _ in sizes]
    adam = Adam(run.way, x.shape)
    generators = [torch.Generator().manual_seed(1000 * run.seed + rank) for rank in range(run.ranks)]
    quotient, sampled = Quotient(run.ranks), Quotient(run.ranks)
    quotients = []
    for step in range(1, run.steps + 1):
        g = gradients_of(model, at, train_text, run.batch, generators)
        mean_gradient = g.mean(0)
        quotient.add(g)
        if step == 1 or step % SAMPLE_EVERY == 0:
            sampled.add(g[:, step % SAMPLED :: SAMPLED])
        quotients.append(quotient.value)
        factors = {"root": math.sqrt(run.ranks), "sampled": sampled.value}
        factors |= dict.fromkeys((*BY_QUOTIENT, "by tensor"), quotient.value)
        factor = factors.get(run.way, 1.0)
        rate_factor: float | Tensor = factor
        if run.way == "by tensor":
            for part, own in zip(g.split(sizes, dim=1), by_tensor, strict=True):
                own.add(part)
            rate_factor = torch.cat([torch.full((n,), own.value) for n, own in zip(sizes, by_tensor, strict=True)])
        mixes_at_end = run.way in ("at end", "quotient at end")
        if run.way == "allreduce":
            g = mean_gradient.repeat(run.ranks, 1)
        elif run.way == "all mixed":
            x = x.mean(0).repeat(run.ranks, 1)
        elif not mixes_at_end:
            partners = torch.arange(run.ranks) ^ (1 << (step % int(math.log2(run.ranks))))
            x = 0.5 * (x + x[partners])
            if run.way == "mixed momenta":
                adam.mix(partners)
        # The other ways change the rate through the second moments.
        norm = run.norm * (quotient.value if run.way in OF_MOMENTS else factor)
        g = g * torch.clamp(norm / (g.norm(dim=1, keepdim=True) + 1e-6), max=1)
        progress = (step - WARM_UP) / (run.steps - WARM_UP)
        rate = run.rate * (step / WARM_UP if step <= WARM_UP else 0.5 * (1 + math.cos(math.pi * progress)))
        mixed = x
        at = x = adam.update(x, g, mean_gradient, step, (rate_factor * rate, rate))
        if run.way == "ahead":
            at = x + 0.5 * (x - (1 - rate * DECAY) * mixed)
        if mixes_at_end:
            at = x = 0.5 * (x + x[torch.arange(run.ranks) ^ (1 << ((step + 1) % int(math.log2(run.ranks))))])
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        losses = [model.loss(x.mean(0), draw(val_text, 32, generator)).item() for _ in range(20)]
    thirds = [quotients[i * run.steps // 3 : (i + 1) * run.steps // 3] for i in range(3)]
    means = [round(sum(third) / len(third), 2) for third in thirds]
    return asdict(run) | {"loss": sum(losses) / len(losses), "quotients": means}


def run_all(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    text = arguments.text.read_text()
    letters = {letter: i for i, letter in enumerate(sorted(set(text)))}
    numbers = torch.tensor([letters[letter] for letter in text])
    cut = len(numbers) * 9 // 10
    done = set()
    if arguments.file.exists():
        for line in arguments.file.read_text().splitlines():
            found = json.loads(line)
            done.add(Run(**{name: found[name] for name in Run.__dataclass_fields__}))
    for seed in range(1, arguments.seeds + 1):
        for rate in arguments.rates:
            for way in arguments.ways:
                # The batch of all ranks together is that of all-reduce, for any number of ranks.
                run = Run(way, arguments.ranks, rate, 1.0, seed, arguments.batch // arguments.ranks, arguments.steps)
                if run in done:
                    continue
                result = train(run, numbers[:cut], numbers[cut:], len(letters))
                print(result, flush=True)
                with arguments.file.open("a") as file:
                    file.write(json.dumps(result) + "\n")


def print_table(arguments: argparse.Namespace) -> None:
    losses, quotients = defaultdict(list), defaultdict(list)
    for line in arguments.file.read_text().splitlines():
        found = json.loads(line)
        key = found["ranks"], found["rate"], found["way"]
        losses[key].append(found["loss"])
        quotients[key].append(found["quotients"])
    print(
        "| ranks | rate | way | loss | seeds | behind all-reduce | quotient by thirds |\n|---|---|---|---|---|---|---|"
    )
    for (ranks, rate, way), found in sorted(losses.items()):
        mean = sum(found) / len(found)
        all_reduce = losses[ranks, rate, "allreduce"]
        behind = f"{mean - sum(all_reduce) / len(all_reduce):.3f}" if all_reduce else ""
        thirds = [sum(q) / len(q) for q in zip(*quotients[ranks, rate, way], strict=True)]
        by_thirds = " ".join(f"{q:.2f}" for q in thirds)
        print(f"| {ranks} | {rate} | {way} | {mean:.3f} | {len(found)} | {behind} | {by_thirds} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.set_defaults(call=run_all)
    run.add_argument("file", type=Path)
    run.add_argument("--text", type=Path, required=True)
    run.add_argument("--ranks", type=int, default=4, help="a power of 2")
    run.add_argument("--rates", type=float, nargs="+", default=[0.002, 0.004])
    run.add_argument("--seeds", type=int, default=3)
    run.add_argument("--batch", type=int, default=16, help="texts of a step, of all ranks together")
    run.add_argument("--steps", type=int, default=600)
    run.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), metavar="WAY")
    table = commands.add_parser("table")
    table.set_defaults(call=print_table)
    table.add_argument("file", type=Path)
    arguments = parser.parse_args()
    arguments.call(arguments)


if __name__ == "__main__":
    main()
