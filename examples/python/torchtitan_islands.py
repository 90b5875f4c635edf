"""Trains a model of torchtitan 0.3 with a torchrun job for each node, and gossip between them.

torchrun --standalone --nproc-per-node 8 -- torchtitan_islands.py --node 0 --nodes 2 \
    --rendezvous host0:29400 --module llama3 --config llama3_8b        # --node 1 on the second node

torchtitan's own options follow. Its parallel dimensions are those of the node. This program has not
been run: torchtitan 0.3 needs a newer PyTorch than the tests have.
"""

import argparse
import contextlib
import os

from torchtitan.config import ConfigManager

import gossamer as gs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rendezvous", required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--node", type=int, required=True)
    parser.add_argument("--topology", default="one-peer-exp")
    parser.add_argument("--codec", default="fp32")
    options, rest = parser.parse_known_args()

    config = ConfigManager().parse_args(rest)
    config.dump_folder = os.path.join(config.dump_folder, f"node_{options.node}")
    # Graphs would have the backward pass write gradients behind the step's back.
    config.training.disable_cuda_graphs = True

    # The data are dealt over the ranks of all nodes.
    loader = type(config.dataloader)
    build = loader.build

    def build_part(self, *, dp_world_size, dp_rank, **others):
        first = options.node * dp_world_size
        size = options.nodes * dp_world_size
        return build(self, dp_world_size=size, dp_rank=first + dp_rank, **others)

    loader.build = build_part

    # torchtitan calls this when it has made the optimizers, and before their schedules.
    made = []
    also = config.model_spec.post_optimizer_build_fn

    def gossip_between_nodes(optimizers, model_parts, parallel_dims):
        if also is not None:
            also(optimizers, model_parts, parallel_dims)
        (model,), (optimizer,) = model_parts, optimizers.optimizers
        gs.initialize_dist(rendezvous=options.rendezvous, nodes=options.nodes, node=options.node)
        made.append(gs.ShardedGossip(model, optimizer, options.topology, codec=options.codec))

    config.model_spec.post_optimizer_build_fn = gossip_between_nodes
    trainer = config.build()
    (gossip,) = made
    load, save = trainer.checkpointer.load, trainer.checkpointer.save

    def load_node(*args, **kwargs):
        with gossip.write_parameters():
            return load(*args, **kwargs)

    def save_node(curr_step, last_step=False):
        # A node goes on from its own model, and the last checkpoint has the mean.
        with gossip.global_average() if last_step else contextlib.nullcontext():
            return save(curr_step, last_step=last_step)

    trainer.checkpointer.load, trainer.checkpointer.save = load_node, save_node
    if config.validator.enable:
        validate = trainer.validator.validate

        def validate_mean(*args, **kwargs):
            with gossip.global_average():
                validate(*args, **kwargs)

        trainer.validator.validate = validate_mean
    trainer.train()
    gossip.finish()
    trainer.close()


if __name__ == "__main__":
    main()
