"""Trains a small GPT on the characters of a text, on all ranks together, and writes a few lines.

python nanogpt.py TEXT [--steps 500] [--topology base-k] [--codec bf16] [--gpu]
"""

import argparse
import math
import pathlib

import torch
from torch.nn import functional

import gossamer as gs


class Block(torch.nn.Module):
    """Attention to what stands before, then a layer for each place."""

    def __init__(self, width, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.norm_1 = torch.nn.LayerNorm(width)
        self.attention = torch.nn.Linear(width, 3 * width)
        self.projection = torch.nn.Linear(width, width)
        self.norm_2 = torch.nn.LayerNorm(width)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, x):
        heads = self.attention(self.norm_1(x)).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_2(x))


class GPT(torch.nn.Module):
    """Guesses the next character at every place of a text."""

    def __init__(self, num_characters, context, width=64, num_layers=2, num_heads=4):
        super().__init__()
        self.context = context
        self.characters = torch.nn.Embedding(num_characters, width)
        self.places = torch.nn.Embedding(context, width)
        self.blocks = torch.nn.Sequential(*[Block(width, num_heads) for _ in range(num_layers)])
        self.norm = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, num_characters, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=0.02)

    def forward(self, tokens):
        x = self.characters(tokens) + self.places(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        return self.head(self.norm(self.blocks(x)))

    @torch.no_grad()
    def write(self, tokens, num_characters):
        """Return `tokens` and what the model adds to them."""
        for _ in range(num_characters):
            guess = self(tokens[None, -self.context :])[0, -1]
            tokens = torch.cat([tokens, torch.multinomial(guess.softmax(0), 1)])
        return tokens


def optimizer_of(parameters):
    """AdamW, which lets matrices decay."""
    matrices = [p for p in parameters if p.dim() > 1]
    others = [p for p in parameters if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))


def schedule_of(optimizer, num_steps, num_first=20):
    """Let the rate rise, then fall as a cosine."""

    def factor(step):
        done = step / max(1, num_steps)
        return min(1.0, (step + 1) / num_first) * (0.55 + 0.45 * math.cos(math.pi * done))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def tokens_of(path, device):
    """Return a text as numbers of characters, and the characters by their numbers."""
    text = path.read_text(encoding="utf-8")
    characters = sorted(set(text))
    number = {c: i for i, c in enumerate(characters)}
    return torch.tensor([number[c] for c in text], device=device), characters


def batch_of(tokens, context, size, generator):
    """Return pieces of a text, and the characters that follow at every place."""
    begins = torch.randint(len(tokens) - context, (size,), generator=generator)
    pieces = torch.stack([tokens[i : i + context + 1] for i in begins])
    return pieces[:, :-1], pieces[:, 1:]


@torch.no_grad()
def evaluate(model, tokens, context):
    """Return the loss and the accuracy on pieces that are the same on every rank."""
    x, y = batch_of(tokens, context, 64, torch.Generator().manual_seed(1))
    guesses = model(x)
    loss = functional.cross_entropy(guesses.flatten(0, 1), y.flatten())
    return loss.item(), (guesses.argmax(-1) == y).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16, help="pieces of a rank")
    parser.add_argument("--topology", default="ring")
    parser.add_argument("--codec", default="fp32")
    parser.add_argument("--gpu", action="store_true", help="each process has a GPU of its own")
    options = parser.parse_args()

    rank, _ = gs.initialize_dist()
    device = gs.local_device() if options.gpu else torch.device("cpu")
    tokens, characters = tokens_of(options.text, device)
    num_train = int(0.9 * len(tokens))
    generator = torch.Generator().manual_seed(1 + rank)
    model = gs.DecentralizedDataParallel(
        GPT(len(characters), options.context).to(device),
        optimizer_of,
        options.topology,
        lr_scheduler_fn=lambda optimizer: schedule_of(optimizer, options.steps),
        codec=options.codec,
        options={"grad_clip": "delayed_global"},
    )
    for step in range(1, options.steps + 1):
        x, y = batch_of(tokens[:num_train], options.context, options.batch, generator)
        loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        if step % 100 == 0 or step == options.steps:
            with model.global_average():
                mean_loss, accuracy = evaluate(model, tokens[num_train:], options.context)
            if rank == 0:
                print(
                    f"step {step}: loss {loss:.3f}, of the mean on other text {mean_loss:.3f}, "
                    f"accuracy of the mean {accuracy:.3f}",
                    flush=True,
                )
    with model.global_average():
        if rank == 0:
            written = model.module.write(tokens[: options.context], 200)
            print("".join(characters[i] for i in written[options.context :].tolist()))


if __name__ == "__main__":
    main()
