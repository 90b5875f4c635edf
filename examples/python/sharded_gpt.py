"""Trains the GPT of nanogpt.py on islands: sharded inside a node by PyTorch, gossip between nodes.

torchrun --nproc-per-node 4 sharded_gpt.py TEXT --shards 2              # two nodes of two ranks
torchrun --nnodes 2 --nproc-per-node 8 ... sharded_gpt.py TEXT --gpu    # two nodes of eight GPUs
"""

import argparse
import os
import pathlib

import torch
import torch.distributed as dist
from nanogpt import GPT, batch_of, evaluate, optimizer_of, schedule_of, tokens_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

import gossamer as gs


def sharded(model, mesh):
    """Shard a model inside the node: its blocks one by one, then the rest."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh["shard"])
    return fully_shard(model, mesh=mesh["shard"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument(
        "--shards", type=int, default=int(os.environ["LOCAL_WORLD_SIZE"]), help="ranks of a node"
    )
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16, help="pieces of a rank")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--topology", default="one-peer-exp")
    parser.add_argument("--algorithm", default="gossip")
    parser.add_argument("--codec", default="fp32")
    parser.add_argument("--gpu", action="store_true", help="each process has a GPU of its own")
    options = parser.parse_args()

    dist.init_process_group("nccl" if options.gpu else "gloo")
    rank, size = gs.initialize_dist()
    device = gs.local_device() if options.gpu else torch.device("cpu")
    shape = (size // options.shards, options.shards)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("node", "shard"))

    tokens, characters = tokens_of(options.text, device)
    num_train = int(0.9 * len(tokens))
    generator = torch.Generator().manual_seed(1 + rank)

    model = GPT(len(characters), options.context, options.width, options.layers).to(device)
    sharded(model, mesh)
    optimizer = optimizer_of(list(model.parameters()))
    schedule = schedule_of(optimizer, options.steps)
    gossip = gs.ShardedGossip(
        model,
        optimizer,
        options.topology,
        mesh=mesh,
        algorithm=options.algorithm,
        codec=options.codec,
    )
    for step in range(1, options.steps + 1):
        x, y = batch_of(tokens[:num_train], options.context, options.batch, generator)
        loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 100 == 0 or step == options.steps:
            with gossip.global_average() as distance:
                mean_loss, accuracy = evaluate(model, tokens[num_train:], options.context)
            if rank == 0:
                print(
                    f"step {step}: loss {loss:.3f}, of the mean on other text {mean_loss:.3f}, "
                    f"accuracy of the mean {accuracy:.3f}, node 0 is {distance:.3f} away",
                    flush=True,
                )
    gossip.finish()
    gs.finalize_dist()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
