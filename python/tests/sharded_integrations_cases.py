"""The cases of test_sharded_integrations.py: two nodes of two ranks, by other libraries' loops.

Four processes fork off one that has imported the libraries. Accelerate and transformers refuse FSDP
on processors, so that this program tells accelerate to go on. Each case returns what rank 0 prints.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import pathlib
import sys
import traceback
from collections.abc import Callable
from typing import Any, ClassVar

import lightning
import torch
import torch.distributed as dist
import transformers
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate import state as accelerate_state
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import DistributedType
from conftest import PROJECT
from islands import Block, make
from torch.distributed.fsdp import fully_shard

import gossamer as gs
from gossamer.integrations.sharded_accelerate import NodeParallelism, gossip_of
from gossamer.integrations.sharded_lightning import ShardedGossamerStrategy
from gossamer.integrations.sharded_transformers import ShardedGossamerTrainer

FOLDER = sys.argv[1]
TEXT = pathlib.Path(FOLDER, "text.txt")
NODES, PLACES = 2, 2
TEXTS = (torch.arange(16)[:, None] + torch.arange(6)) % 11


EXAMPLES = {
    "accelerate": ["--shards", "2"],
    "transformers": ["--shards", "2", "--out", f"{FOLDER}/example", "--steps", "8"],
    "lightning": ["--nodes", "2", "--out", f"{FOLDER}/example"],
}


def shard_on_processors() -> None:
    """Have accelerate shard on processors, which it does on GPUs alone."""
    init = accelerate_state.AcceleratorState.__init__

    def patched(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        init(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None:
            self.distributed_type = DistributedType.FSDP
            accelerate_state.PartialState._shared_state["distributed_type"] = DistributedType.FSDP
            self.fsdp_plugin = fsdp_plugin

    accelerate_state.AcceleratorState.__init__ = patched


def parallelism() -> NodeParallelism:
    return NodeParallelism(dp_replicate_size=NODES, dp_shard_size=PLACES)


def norm_of(model: torch.nn.Module) -> float:
    def full(p: Any) -> torch.Tensor:
        return p.full_tensor() if hasattr(p, "full_tensor") else p

    return sum(full(p.detach()).double().square().sum().item() for p in model.parameters())


def of_ranks(value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def refusal(work: Callable[[], Any]) -> str:
    try:
        work()
    except gs.ConfigError as error:
        return str(error)
    raise AssertionError("nothing was refused")


def loss_of(model: torch.nn.Module, texts: torch.Tensor) -> torch.Tensor:
    guesses = model(texts[:, :-1])
    return torch.nn.functional.cross_entropy(guesses.flatten(0, 1), texts[:, 1:].flatten())


def of_accelerate() -> Any:
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=[Block.__name__],
    )
    accelerator = Accelerator(
        cpu=True,
        fsdp_plugin=plugin,
        parallelism_config=parallelism(),
        gradient_accumulation_steps=2,
    )
    net = make(torch.float32)
    model, optimizer, loader = accelerator.prepare(
        net,
        torch.optim.AdamW(net.parameters(), lr=0.01),
        torch.utils.data.DataLoader(TEXTS, batch_size=2),
    )
    gossip = gossip_of(accelerator, model, optimizer, topology="one-peer-exp")
    seen: list[int] = []
    clipped: list[float] = []
    evaluated: list[float] = []
    for _ in range(3):
        for texts in loader:
            seen += texts[:, 0].tolist()
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, texts))
                if accelerator.sync_gradients:
                    clipped.append(float(accelerator.clip_grad_norm_(model.parameters(), 0.5)))
                optimizer.step()
                optimizer.zero_grad()
        own = norm_of(model)
        with gossip.global_average():
            evaluated.append(norm_of(model))
    steps = gossip.num_steps
    gossip.finish()
    accelerator.state.parallelism_config = ParallelismConfig()
    return {
        "own": of_ranks(own),
        "evaluated": of_ranks(evaluated),
        "steps": [steps, len(clipped)],
        "clipped": of_ranks(clipped[-1]),
        "seen": of_ranks(seen[:4]),
        "refused": refusal(lambda: gossip_of(accelerator, model, optimizer)),
    }


class Trainer(ShardedGossamerTrainer):
    """Notes what it evaluates."""

    evaluated: ClassVar[list[float]] = []

    def prediction_step(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        self.evaluated.append(norm_of(model))
        return super().prediction_step(model, *args, **kwargs)


class Watch(transformers.TrainerCallback):
    """Notes the nodes' own models after each step."""

    def __init__(self) -> None:
        self.own: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, *, model: Any, **rest: Any) -> None:
        self.own.append(norm_of(model))


def of_transformers() -> Any:
    transformers.set_seed(1)
    config = transformers.GPT2Config(
        vocab_size=11, n_positions=8, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    arguments = transformers.TrainingArguments(
        FOLDER,
        use_cpu=True,
        fsdp=True,
        parallelism_config=parallelism(),
        max_steps=4,
        per_device_train_batch_size=2,
        learning_rate=0.01,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        report_to=[],
        disable_tqdm=True,
    )
    again = copy.deepcopy(arguments)
    again.max_steps = 6
    data = [{"input_ids": text, "labels": text} for text in TEXTS]
    watch = Watch()

    def make_trainer(arguments: Any, watch: Watch) -> Trainer:
        return Trainer(
            transformers.GPT2LMHeadModel(config),
            arguments,
            train_dataset=data,
            eval_dataset=data,
            callbacks=[watch],
            gossamer={"topology": "one-peer-exp", "codec": "bf16"},
        )

    trainer = make_trainer(arguments, watch)
    trainer.train()
    end = norm_of(trainer.model)
    trainer.save_model()
    dist.barrier()
    saved = transformers.GPT2LMHeadModel.from_pretrained(FOLDER)
    best = transformers.GPT2LMHeadModel.from_pretrained(trainer.state.best_model_checkpoint)
    evaluated = list(trainer.evaluated)
    more = Watch()
    make_trainer(again, more).train(resume_from_checkpoint=True)
    return {
        "own": of_ranks(watch.own[2]),
        "again": len(more.own),
        "evaluated": of_ranks(evaluated),
        "end": of_ranks(end),
        "saved": [norm_of(saved), norm_of(best)],
        "steps": [trainer.state.global_step, len(watch.own)],
    }


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.own: list[float] = []
        self.evaluated: list[float] = []
        self.seen: list[int] = []

    def configure_model(self) -> None:
        self.net = make(torch.float32)
        mesh = self.device_mesh["data_parallel"]
        for block in self.net.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.net, mesh=mesh)

    def training_step(self, texts: torch.Tensor, index: int) -> torch.Tensor:
        self.own.append(norm_of(self.net))
        self.seen += texts[:, 0].tolist()
        return loss_of(self.net, texts)

    def validation_step(self, texts: torch.Tensor, index: int) -> None:
        self.evaluated.append(norm_of(self.net))
        self.log("loss", loss_of(self.net, texts), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.net.parameters(), lr=0.01)


def trainer_of(nodes: int, epochs: int = 2) -> lightning.Trainer:
    return lightning.Trainer(
        accelerator="cpu",
        devices=NODES * PLACES,
        strategy=ShardedGossamerStrategy(nodes, topology="one-peer-exp"),
        max_epochs=epochs,
        default_root_dir=FOLDER,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
    )


def of_lightning() -> Any:
    module = Module()
    trainer = trainer_of(NODES)
    loader = torch.utils.data.DataLoader(TEXTS, batch_size=1)
    trainer.fit(module, loader, loader)
    saved = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=False)
    again = Module()
    path = trainer.checkpoint_callback.best_model_path
    trainer_of(NODES, epochs=3).fit(again, loader, loader, ckpt_path=path)
    weights = [x.double().square().sum().item() for x in saved["state_dict"].values()]
    return {
        "own": of_ranks(module.own[-1]),
        "evaluated": of_ranks(module.evaluated),
        "end": of_ranks(norm_of(module.net)),
        "saved": [sum(weights), again.own[0]],
        "again": len(again.own) // 2,
        "steps": [trainer.global_step, len(module.own) // 2],
        "seen": of_ranks(module.seen[:4]),
        "refused": refusal(lambda: trainer_of(3).fit(Module())),
    }


def main() -> None:
    torch.set_num_threads(1)
    told = dict(os.environ)
    rank = int(told["RANK"])
    store = dist.FileStore(f"{FOLDER}/store", NODES * PLACES)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=NODES * PLACES)
    cases = {
        "accelerate": of_accelerate,
        "transformers": of_transformers,
        "lightning": of_lightning,
    }
    for library, case in cases.items():
        found = case()
        if rank == 0:
            print("CASE", json.dumps([library, found]), flush=True)
        accelerate_state.AcceleratorState._reset_state(True)
    for library, options in EXAMPLES.items():
        # Lightning takes away what has been told.
        os.environ |= told
        sys.argv = [library, str(TEXT), *options]
        importlib.import_module(f"{library}_islands").main()
        accelerate_state.AcceleratorState._reset_state(True)


if __name__ == "__main__":
    shard_on_processors()
    TEXT.write_text("the quick brown fox jumps over the lazy dog. " * 16, encoding="utf-8")
    sys.path.append(str(PROJECT / "examples" / "python"))
    # As torchrun tells the ranks.
    os.environ |= {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "ACCELERATE_USE_CPU": "true"}
    children = []
    for rank in range(NODES * PLACES):
        child = os.fork()
        if child == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            code = 1
            try:
                main()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print("the ranks ended with", codes, file=sys.stderr)
    sys.exit(max(codes, key=abs) != 0)
