"""Trains the GPT of nanogpt.py by Lightning: sharded inside a node, gossip between nodes.

torchrun --nnodes 2 --nproc-per-node 8 ... lightning_islands.py TEXT --nodes 2
"""

import argparse
import os
import pathlib

import lightning
import torch
from nanogpt import GPT, optimizer_of
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from gossamer.integrations.sharded_lightning import ShardedGossamerStrategy

CONTEXT = 32


class Model(lightning.LightningModule):
    """Shards itself in its node."""

    def __init__(self, num_characters):
        super().__init__()
        self.num_characters = num_characters

    def configure_model(self):
        self.gpt = GPT(self.num_characters, CONTEXT)
        mesh = self.device_mesh["data_parallel"]
        for block in self.gpt.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.gpt, mesh=mesh)

    def training_step(self, piece, index):
        guesses = self.gpt(piece[:, :-1])
        return functional.cross_entropy(guesses.flatten(0, 1), piece[:, 1:].flatten())

    def validation_step(self, piece, index):
        right = self.gpt(piece[:, :-1]).argmax(-1) == piece[:, 1:]
        self.log("accuracy", right.float().mean(), sync_dist=True)

    def configure_optimizers(self):
        return optimizer_of(list(self.gpt.parameters()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--out", default="runs/lightning", help="the folder of checkpoints")
    parser.add_argument("--topology", default="one-peer-exp")
    options = parser.parse_args()

    # The ranks of a node shard one model.
    lightning.seed_everything(1)
    text = options.text.read_text(encoding="utf-8")
    characters = sorted(set(text))
    tokens = torch.tensor([characters.index(c) for c in text])
    num_train = int(0.9 * len(tokens))
    loaders = [
        torch.utils.data.DataLoader(part.unfold(0, CONTEXT + 1, 1), batch_size=16, shuffle=shuffle)
        for part, shuffle in ((tokens[:num_train], True), (tokens[num_train:], False))
    ]
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    trainer = lightning.Trainer(
        devices=local,
        num_nodes=int(os.environ["WORLD_SIZE"]) // local,
        strategy=ShardedGossamerStrategy(options.nodes, topology=options.topology),
        max_epochs=1,
        gradient_clip_val=1.0,
        default_root_dir=options.out,
        logger=False,
    )
    trainer.fit(Model(len(characters)), *loaders)
    if trainer.is_global_zero:
        print(f"accuracy of the mean {trainer.callback_metrics['accuracy']:.3f}")


if __name__ == "__main__":
    main()
