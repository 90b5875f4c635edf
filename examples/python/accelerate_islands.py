"""Trains the GPT of nanogpt.py by accelerate: sharded inside a node, gossip between nodes.

torchrun --nnodes 2 --nproc-per-node 8 ... accelerate_islands.py TEXT
"""

import argparse
import os
import pathlib

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import set_seed
from nanogpt import GPT, evaluate, optimizer_of
from torch.nn import functional

from gossamer.integrations.sharded_accelerate import NodeParallelism, gossip_of

CONTEXT = 32


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument(
        "--shards", type=int, default=int(os.environ["LOCAL_WORLD_SIZE"]), help="ranks of a node"
    )
    parser.add_argument("--batch", type=int, default=16, help="pieces of a rank")
    parser.add_argument("--topology", default="one-peer-exp")
    options = parser.parse_args()

    nodes = int(os.environ["WORLD_SIZE"]) // options.shards
    accelerator = Accelerator(
        fsdp_plugin=FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["Block"],
        ),
        parallelism_config=NodeParallelism(dp_replicate_size=nodes, dp_shard_size=options.shards),
    )
    text = options.text.read_text(encoding="utf-8")
    characters = sorted(set(text))
    tokens = torch.tensor([characters.index(c) for c in text])
    num_train = int(0.9 * len(tokens))
    pieces = tokens[:num_train].unfold(0, CONTEXT + 1, 1)
    # The ranks of a node shard one model.
    set_seed(1)
    model = GPT(len(characters), CONTEXT)
    model, optimizer, loader = accelerator.prepare(
        model,
        optimizer_of(list(model.parameters())),
        torch.utils.data.DataLoader(pieces, batch_size=options.batch, shuffle=True),
    )
    gossip = gossip_of(accelerator, model, optimizer, topology=options.topology)
    for piece in loader:
        guesses = model(piece[:, :-1])
        loss = functional.cross_entropy(guesses.flatten(0, 1), piece[:, 1:].flatten())
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    with gossip.global_average() as distance:
        others = tokens[num_train:].to(accelerator.device)
        _, accuracy = evaluate(model, others, CONTEXT)
    accelerator.print(f"accuracy of the mean {accuracy:.3f}, node 0 is {distance:.3f} away")
    gossip.finish()


if __name__ == "__main__":
    main()
