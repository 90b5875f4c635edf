"""Trains a small GPT-2 by transformers: sharded inside a node, gossip between nodes.

torchrun --nnodes 2 --nproc-per-node 8 ... transformers_islands.py TEXT --out runs/gpt
"""

import argparse
import os
import pathlib

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments, set_seed

from gossamer.integrations.sharded_transformers import NodeParallelism, ShardedGossamerTrainer

CONTEXT = 32


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument(
        "--shards", type=int, default=int(os.environ["LOCAL_WORLD_SIZE"]), help="ranks of a node"
    )
    parser.add_argument("--out", default="runs/transformers", help="the folder of checkpoints")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--topology", default="one-peer-exp")
    options = parser.parse_args()

    tokens = torch.frombuffer(bytearray(options.text.read_bytes()), dtype=torch.uint8).long()
    data = [{"input_ids": piece, "labels": piece} for piece in tokens.unfold(0, CONTEXT, 1)]
    num_train = int(0.9 * len(data))
    nodes = int(os.environ["WORLD_SIZE"]) // options.shards
    arguments = TrainingArguments(
        options.out,
        fsdp=True,
        parallelism_config=NodeParallelism(dp_replicate_size=nodes, dp_shard_size=options.shards),
        max_steps=options.steps,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        save_only_model=True,
        report_to=[],
    )
    set_seed(1)
    config = GPT2Config(vocab_size=256, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=4)
    trainer = ShardedGossamerTrainer(
        GPT2LMHeadModel(config),
        arguments,
        train_dataset=data[:num_train],
        eval_dataset=data[num_train + CONTEXT :],
        gossamer={"topology": options.topology},
    )
    trainer.train()
    loss = trainer.evaluate()["eval_loss"]
    if trainer.is_world_process_zero():
        print(f"loss of the mean {loss:.3f}")
    trainer.save_model()


if __name__ == "__main__":
    main()
