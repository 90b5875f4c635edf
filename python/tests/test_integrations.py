"""Training loops of other libraries, alone and under mpirun."""

from __future__ import annotations

import socket
import textwrap
from types import SimpleNamespace

import pytest
import torch
from conftest import needs_mpi, rank, run_python

import gossamer as gs
from gossamer.checks import compare_modules
from gossamer.integrations import meeting
from gossamer.integrations.mean import refuse_asynchronous, refuse_survival

PROCESSES = pytest.mark.parametrize("num_processes", [1, pytest.param(2, marks=needs_mpi)])


def run(tmp_path, program, num_processes):
    """Run a program, whose assertions are the test."""
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(program))
    done = run_python(
        ["-W", "error:parameters were written:UserWarning", str(path), str(tmp_path)],
        num_processes,
        limit_s=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "has done it" in done.stdout


LIGHTNING = """
import logging, os, sys
import torch, torchmetrics, lightning
from torch.utils.data import DistributedSampler
import gossamer as gs
from lightning.pytorch.callbacks import BackboneFinetuning
from gossamer.integrations.lightning import GossamerStrategy

DEVICE = os.environ.get("GOSSAMER_TEST_DEVICE", "cpu")
_, size = gs.initialize_dist()
# As under srun, whose tasks are no devices of Lightning.
os.environ |= {"SLURM_NTASKS": str(size), "SLURM_NTASKS_PER_NODE": str(size)}
os.environ["SLURM_JOB_NAME"] = "train"
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = 2 * x[:, :3] + 1


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 3)
        self.mean = torchmetrics.MeanMetric()

    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch, index):
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        self.mean(loss.detach())
        self.log("mean", self.mean)
        norm = sum(p.double().square().sum() for p in self.parameters())
        norms = gs.current_session().all_gather(str(norm.item()))
        assert len(set(norms)) == 1, "validation sees the mean"

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]


def train(num_epochs, **options):
    torch.manual_seed(1)
    module = Module()
    start = {name: p.clone() for name, p in module.state_dict().items()}
    trainer = lightning.Trainer(
        accelerator=DEVICE, devices=1, strategy=GossamerStrategy(**options), max_epochs=num_epochs,
        default_root_dir=sys.argv[1], enable_progress_bar=False, enable_model_summary=False,
        logger=False, accumulate_grad_batches=2, gradient_clip_val=0.5,
    )
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4)
    trainer.fit(module, loader, loader)
    assert trainer.world_size == size
    assert trainer.global_step == num_epochs * 8 // size
    saved = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=False)
    for name, p in module.state_dict().items():
        assert torch.equal(saved["state_dict"][name].cpu(), p.cpu()), "the mean is saved"
        assert len(set(gs.current_session().all_gather(str(p.tolist())))) == 1
    (again,) = trainer.validate(module, loader, verbose=False)
    assert abs(again["loss"] - trainer.callback_metrics["loss"]) < 1e-6
    assert abs(again["mean"] - again["loss"]) < 1e-6, "torchmetrics count over all ranks"
    trainer.save_checkpoint(sys.argv[1] + "/end.ckpt")
    return module, start


def train_plain(start, num_epochs, size):
    module = Module()
    module.load_state_dict(start)
    (optimizer,), (schedule,) = module.configure_optimizers()
    samplers = [DistributedSampler(range(64), size, rank, seed=0) for rank in range(size)]
    for epoch in range(num_epochs):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        order = torch.tensor([list(sampler) for sampler in samplers]).T
        # A step has two batches of four samples on every rank.
        for samples in order.split(8):
            optimizer.zero_grad()
            module.training_step((x[samples.flatten()], y[samples.flatten()]), 0).backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            optimizer.step()
        schedule.step()
    return module


module, start = train(3)
plain = train_plain(start, 3, size)
for p, q in zip(module.parameters(), plain.parameters()):
    assert torch.equal(p, q) or (p - q).abs().max() < 1e-5, (p - q).abs().max()

class Evil:
    def __reduce__(self):
        return print, ("a rank ran this",)


strategy = GossamerStrategy()
told = strategy.broadcast({"path": "a", "x": [1, 2.5, None, torch.ones(2)]}, size - 1)
assert told["path"] == "a" and told["x"][:3] == [1, 2.5, None] and told["x"][3].sum() == 2
try:
    strategy._gather(Evil())
    raise SystemExit("an object with code was sent")
except gs.ConfigError as error:
    assert "a rank sends Evil to the others, allowed: None, numbers, texts, paths" in str(error)


class Finetuned(Module):
    def __init__(self):
        super().__init__()
        self.backbone = torch.nn.Linear(8, 8)
        self.moved = []

    def forward(self, x):
        return self.net(self.backbone(x))

    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.05)

    def on_train_epoch_start(self):
        self.before = self.backbone.weight.detach().clone()

    def on_train_epoch_end(self):
        self.moved.append(not torch.equal(self.before, self.backbone.weight))


module = Finetuned()
lightning.Trainer(
    accelerator=DEVICE, devices=1, strategy=GossamerStrategy(algorithm="gossip", topology="ring"),
    max_epochs=2, callbacks=[BackboneFinetuning(unfreeze_backbone_at_epoch=1)], logger=False,
    enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    precision="bf16-true",
).fit(module, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4))
assert module.moved == [False, True], module.moved
assert module.net.weight.dtype == torch.bfloat16

module, start = train(30, algorithm="gossip", topology="ring")
loss = torch.nn.functional.mse_loss(module.net(x), y).item()
assert loss < 0.1, loss
print(f"rank {gs.current_session().rank} has done it\\n", flush=True)
"""


@PROCESSES
def test_lightning(tmp_path, num_processes):
    pytest.importorskip("lightning")
    run(tmp_path, LIGHTNING, num_processes)


UNEVEN_LIGHTNING = """
import logging, sys
import torch, lightning
import gossamer as gs
from gossamer.integrations.lightning import GossamerStrategy

rank, size = gs.initialize_dist()
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = 2 * x[:, :3] + 1
data = torch.utils.data.TensorDataset(x, y)
NUM_BATCHES = (7, 4)


def rows(rank):
    # The last batch of each rank has three samples, and the others have four.
    return range(rank, rank + 2 * (4 * NUM_BATCHES[rank] - 1), 2)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return (data[i] for i in rows(rank))


class Module(lightning.LightningModule):
    def __init__(self, optim_fn):
        super().__init__()
        self.net = torch.nn.Linear(8, 3)
        self.optim_fn = optim_fn

    def training_step(self, batch, index):
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("train", loss, on_step=True, sync_dist=True)
        return loss

    def validation_step(self, batch, index):
        self.log("loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self):
        optimizer = self.optim_fn(self.parameters())
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def train(optim_fn, loader, options, **others):
    torch.manual_seed(1)
    module = Module(optim_fn)
    start = {name: p.clone() for name, p in module.state_dict().items()}
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, strategy=GossamerStrategy(**options), max_epochs=2,
        default_root_dir=sys.argv[1], enable_progress_bar=False, enable_model_summary=False,
        logger=False, log_every_n_steps=1, use_distributed_sampler=False, **others,
    )
    valid = torch.utils.data.DataLoader(data, batch_size=16)
    trainer.fit(module, torch.utils.data.DataLoader(loader, batch_size=4, drop_last=False), valid)
    assert trainer.global_step == 2 * max(NUM_BATCHES), trainer.global_step
    return module, start


def with_all_batches(start, optim_fn):
    # As DistributedDataParallel.join(), whose mean divides by the number of all ranks.
    module = Module(optim_fn)
    module.load_state_dict(start)
    (optimizer,), (schedule,) = module.configure_optimizers()
    batches = [torch.tensor(rows(rank)).split(4) for rank in range(size)]
    for _ in range(2):
        for step in range(max(NUM_BATCHES)):
            optimizer.zero_grad()
            for own in [own[step] for own in batches if step < len(own)]:
                loss = torch.nn.functional.mse_loss(module.net(x[own]), y[own])
                (loss / size).backward()
            optimizer.step()
            schedule["scheduler"].step()
    return module


loaders = [Stream(), torch.utils.data.Subset(data, rows(rank))]
for optim_fn in (
    lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9), lambda ps: torch.optim.AdamW(ps, lr=0.05)
):
    for loader in loaders:
        module, start = train(optim_fn, loader, {})
        plain = with_all_batches(start, optim_fn)
        for p, q in zip(module.parameters(), plain.parameters()):
            assert (p - q).abs().max() < 1e-6, (p - q).abs().max()
        module, _ = train(optim_fn, loader, {"algorithm": "gossip"})
        assert len(set(gs.current_session().all_gather(str(module.net.weight.tolist())))) == 1
try:
    train(lambda ps: torch.optim.SGD(ps, lr=0.05), loaders[1], {}, val_check_interval=2)
except gs.ConfigError as error:
    assert "ranks [1] have no batch left, and the others call a validation" in str(error), error
    print(f"rank {rank} has done it\\n", flush=True)
"""


@needs_mpi
def test_lightning_with_ranks_that_have_different_numbers_of_batches(tmp_path):
    pytest.importorskip("lightning")
    run(tmp_path, UNEVEN_LIGHTNING, 2)


TRANSFORMERS = """
import os, sys
import torch, transformers
import gossamer as gs
from gossamer.integrations.transformers import GossamerTrainer, meet_accelerate

ON_GPU = os.environ.get("GOSSAMER_TEST_DEVICE", "cpu") != "cpu"
meet_accelerate()
texts = (torch.arange(64)[:, None] + torch.arange(16)) % 32
data = [{"input_ids": text, "labels": text} for text in texts]


def train(kind, dtype=torch.float32, args=None, **options):
    transformers.set_seed(1)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )).to(dtype)
    arguments = transformers.TrainingArguments(sys.argv[1], **{
        "use_cpu": not ON_GPU, "num_train_epochs": 4, "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2, "learning_rate": 0.01, "report_to": [],
        "save_strategy": "epoch", "eval_strategy": "epoch", "disable_tqdm": True, **(args or {}),
    })
    trainer = kind(model, arguments, train_dataset=data, eval_dataset=data, **options)
    trainer.train()
    return trainer


def flat(model):
    return torch.cat([p.detach().cpu().flatten() for p in model.parameters()])


plain = train(transformers.Trainer)
trainer = train(GossamerTrainer)
difference = (flat(trainer.model) - flat(plain.model)).abs().max()
assert difference < 1e-4, difference

short = {"max_steps": 3, "logging_steps": 1, "save_strategy": "no", "eval_strategy": "no"}
for extra in ({"label_smoothing_factor": 0.1}, {"bf16": True}):
    runs = [train(kind, args=short | extra) for kind in (transformers.Trainer, GossamerTrainer)]
    losses = [[line["loss"] for line in run.state.log_history if "loss" in line] for run in runs]
    assert len(losses[0]) == 3 and losses[0] == losses[1], (extra, losses)
kinds = transformers.Trainer, GossamerTrainer
plain, trainer = (train(kind, torch.bfloat16, short) for kind in kinds)
assert torch.equal(flat(trainer.model), flat(plain.model)), "DDP's bits in bfloat16"

options = {"algorithm": "gossip", "topology": "ring"}
half = train(GossamerTrainer, torch.bfloat16, short, gossamer=options)
after = flat(half.model)
half.train()
assert not torch.equal(flat(half.model), after), "a second train() goes on"



class FailsOnce(transformers.TrainerCallback):
    has_failed = False

    def on_step_end(self, arguments, state, control, **others):
        if state.global_step == 2 and not self.has_failed:
            self.has_failed = True
            raise ZeroDivisionError


for how in ({}, options):
    trainer = train(GossamerTrainer, args=short, gossamer=how)
    trainer.add_callback(FailsOnce())
    try:
        trainer.train()
    except ZeroDivisionError:
        trainer.train()
    assert trainer.state.global_step == 3, "train() trains again after an exception"

trainer = train(GossamerTrainer, gossamer=options)
assert trainer.evaluate()["eval_loss"] < 2.7, "a model that knows nothing has log 32 = 3.5"
session = gs.current_session()
assert len(set(session.all_gather(str(flat(trainer.model).tolist())))) == 1, "the mean stays"
session.barrier()
folder = f"{sys.argv[1]}/checkpoint-{trainer.state.global_step}"
saved = transformers.GPT2LMHeadModel.from_pretrained(folder)
assert torch.equal(flat(saved), flat(trainer.model)), "the mean is saved"
print(f"rank {session.rank} has done it\\n", flush=True)
"""


@PROCESSES
def test_transformers(tmp_path, num_processes):
    pytest.importorskip("transformers")
    run(tmp_path, TRANSFORMERS, num_processes)


UNEVEN_TRANSFORMERS = """
import sys
import torch, transformers
import gossamer as gs
from gossamer.integrations.transformers import GossamerTrainer, meet_accelerate

meet_accelerate()
session = gs.current_session()
# 13 batches of up to two texts: rank 0 has seven, of which the last has one text, and rank 1 has 6.
texts = (torch.arange(25)[:, None] + torch.arange(16)) % 32
data = [{"input_ids": text, "labels": text} for text in texts]
BATCHES = [[texts[2 * batch : 2 * batch + 2] for batch in range(rank, 13, 2)] for rank in range(2)]


class InOrder(GossamerTrainer):
    def _get_train_sampler(self, *arguments):
        return torch.utils.data.SequentialSampler(data)


def new_model():
    transformers.set_seed(1)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )).double()


def train(accumulates=1, options=None, **others):
    arguments = transformers.TrainingArguments(sys.argv[1], **{
        "use_cpu": True, "num_train_epochs": 2, "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": accumulates, "learning_rate": 0.01, "report_to": [],
        "save_strategy": "epoch", "eval_strategy": "epoch", "logging_steps": 1,
        "disable_tqdm": True, "max_grad_norm": 0.0, "optim": "sgd",
        "accelerator_config": {"even_batches": False}, **others,
    })
    trainer = InOrder(
        new_model(), arguments, train_dataset=data, eval_dataset=data, gossamer=options
    )
    trainer.train()
    return trainer


def with_all_batches(accumulates, steps):
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1 - s / (2 * steps))
    for _ in range(2):
        for s in range(steps):
            parts = [own[accumulates * s : accumulates * (s + 1)] for own in BATCHES]
            x = torch.cat([batch for part in parts for batch in part])
            optimizer.zero_grad()
            # The Trainer divides by the number of all labels, and the model by one less for a text.
            (15 / 16 * model(input_ids=x, labels=x).loss).backward()
            optimizer.step()
            schedule.step()
    return model


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


for accumulates, steps in ((1, 7), (4, 2)):
    trainer = train(accumulates)
    assert trainer.state.global_step == 2 * steps
    difference = (flat(trainer.model) - flat(with_all_batches(accumulates, steps))).abs().max()
    assert difference < 1e-6, difference
trainer = train(options={"algorithm": "gossip", "topology": "ring"})
assert len(set(session.all_gather(str(flat(trainer.model).tolist())))) == 1
try:
    train(eval_strategy="steps", eval_steps=7)
except gs.ConfigError as error:
    assert "ranks [1] have no batch left, and the others call evaluate()" in str(error), error
    print(f"rank {session.rank} has done it\\n", flush=True)
"""


@needs_mpi
def test_transformers_with_ranks_that_have_different_numbers_of_batches(tmp_path):
    pytest.importorskip("transformers")
    run(tmp_path, UNEVEN_TRANSFORMERS, 2)


SEQ2SEQ = """
import sys
import torch, transformers
import gossamer as gs
from gossamer.integrations.transformers import GossamerSeq2SeqTrainer, meet_accelerate

meet_accelerate()
texts = torch.arange(2, 18)[:, None] + torch.arange(8)
data = [{"input_ids": text, "labels": text} for text in texts]


def train(kind, **options):
    transformers.set_seed(1)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=32, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    ))
    arguments = transformers.Seq2SeqTrainingArguments(
        sys.argv[1], use_cpu=True, max_steps=4, per_device_train_batch_size=4, learning_rate=0.01,
        report_to=[], save_strategy="no", disable_tqdm=True, predict_with_generate=True,
        generation_max_length=8,
    )
    trainer = kind(model, arguments, train_dataset=data, eval_dataset=data, **options)
    trainer.train()
    assert len(trainer.predict(data).predictions) == 16
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


ours, theirs = train(GossamerSeq2SeqTrainer), train(transformers.Seq2SeqTrainer)
assert torch.equal(ours, theirs), (ours - theirs).abs().max()
end = train(GossamerSeq2SeqTrainer, gossamer={"algorithm": "gossip", "topology": "ring"})
session = gs.current_session()
assert len(set(session.all_gather(str(end.tolist())))) == 1, "the mean stays"
print(f"rank {session.rank} has done it\\n", flush=True)
"""


@PROCESSES
def test_seq2seq(tmp_path, num_processes):
    pytest.importorskip("transformers")
    run(tmp_path, SEQ2SEQ, num_processes)


ACCELERATE = """
import torch
import gossamer as gs
from accelerate import Accelerator
from gossamer.compat.ddp import DistributedDataParallel
from gossamer.integrations.accelerate import GossamerAccelerator

x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))


def train(kind, **options):
    torch.manual_seed(1)
    accelerator = kind(cpu=True, gradient_accumulation_steps=2, **options)
    net = torch.nn.Linear(8, 3)
    model, optimizer, loader = accelerator.prepare(
        net, torch.optim.AdamW(net.parameters(), lr=0.05),
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=4),
    )
    for epoch in range(3):
        for (batch,) in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(batch), 2 * batch[:, :3] + 1)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
    assert accelerator.unwrap_model(model) is net
    return accelerator, model, net


_, summed, ours = train(GossamerAccelerator)
_, _, theirs = train(Accelerator)
assert torch.equal(ours.weight, theirs.weight), (ours.weight - theirs.weight).abs().max()

gossip = {"algorithm": "gossip", "topology": "ring"}
accelerator, model, net = train(GossamerAccelerator, gossamer=gossip)
with model.global_average():
    means = accelerator.gather(net.weight.detach()[None])
assert all(torch.equal(mean, means[0]) for mean in means)
if gs.current_session().world_size > 1:
    try:
        Accelerator(cpu=True).prepare(DistributedDataParallel(torch.nn.Linear(8, 3)))
        raise SystemExit("PyTorch's wrapper was put around gossamer's")
    except gs.ConfigError as error:
        assert "GossamerAccelerator wraps the plain module" in str(error)
print(f"rank {gs.current_session().rank} has done it\\n", flush=True)
"""


@PROCESSES
def test_accelerate(tmp_path, num_processes):
    pytest.importorskip("accelerate")
    run(tmp_path, ACCELERATE, num_processes)


UNEVEN_ACCELERATE = """
import torch
import gossamer as gs
from gossamer.integrations.accelerate import GossamerAccelerator

x = torch.randn(25, 8, generator=torch.Generator().manual_seed(1)).double()


def loss_of(model, rows):
    return torch.nn.functional.mse_loss(model(rows), 2 * rows[:, :3] + 1)


accelerator = GossamerAccelerator(cpu=True)
torch.manual_seed(1)
net = torch.nn.Linear(8, 3).double()
plain = torch.nn.Linear(8, 3).double()
plain.load_state_dict(net.state_dict())
model, optimizer, loader = accelerator.prepare(
    net, torch.optim.AdamW(net.parameters(), lr=0.05),
    torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=2),
)
num = 0
for _ in range(2):
    with accelerator.join_uneven_inputs([model], even_batches=False):
        for (rows,) in loader:
            num += 1
            accelerator.backward(loss_of(model, rows))
            optimizer.step()
            optimizer.zero_grad()
rank = gs.current_session().rank
assert num == (14, 12)[rank] and loader.batch_sampler.even_batches
own = torch.optim.AdamW(plain.parameters(), lr=0.05)
for _ in range(2):
    for step in range(7):
        own.zero_grad()
        for batch in range(2 * step, min(2 * step + 2, 13)):
            (loss_of(plain, x[2 * batch : 2 * batch + 2]) / 2).backward()
        own.step()
assert (net.weight - plain.weight).abs().max() < 1e-6, (net.weight - plain.weight).abs().max()
print(f"rank {rank} has done it\\n", flush=True)
"""


@needs_mpi
def test_accelerate_with_ranks_that_have_different_numbers_of_batches(tmp_path):
    pytest.importorskip("accelerate")
    run(tmp_path, UNEVEN_ACCELERATE, 2)


def test_transformers_that_does_not_know_of_the_processes(tmp_path):
    pytest.importorskip("transformers")
    program = """
    import sys, torch, transformers
    import gossamer as gs
    from gossamer.integrations.transformers import GossamerTrainer

    arguments = transformers.TrainingArguments(sys.argv[1], use_cpu=True)
    gs.integrations.accelerate.initialize_dist = lambda: (0, 2)
    try:
        GossamerTrainer(torch.nn.Linear(1, 1), arguments)
    except gs.ConfigError as error:
        assert "Accelerate knows 1 processes, and gossamer 2, allowed" in str(error)
        print("has done it")
    """
    run(tmp_path, program, 1)


# Where PyTorch's processes meet.


def session_of_two_hosts():
    session = gs.current_session()
    return SimpleNamespace(
        rank=rank(),
        world_size=2,
        local_world_size=1,
        all_gather=session.all_gather,
        barrier=session.barrier,
    )


def test_the_address_of_rank_0_is_one_that_all_ranks_reach(monkeypatch):
    """A host's name leads nowhere on many clusters, and to another host on some."""
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    with socket.create_server(("127.0.0.1", 0)) as other:
        tried = ["no-such-host.invalid", "127.0.0.1"]
        monkeypatch.setattr(meeting, "_own_addresses", lambda: tried)

        def work():
            # Another program, which is silent, is no rank 0.
            assert not meeting._answers("127.0.0.1", other.getsockname()[1], "token")
            return meeting.reachable_place(session_of_two_hosts())

        monkeypatch.setattr(meeting, "_CONNECT_S", 0.5)
        places = gs.run_threads(2, work)
    assert places[0] == places[1]
    assert places[0][0] == "127.0.0.1"


def test_a_rank_0_that_nobody_reaches_is_told(monkeypatch):
    monkeypatch.setattr(meeting, "_own_addresses", lambda: ["no-such-host.invalid"])
    with pytest.raises(gs.CommError, match=r"ranks \[0, 1\] reach rank 0 at none of \['no-such"):
        gs.run_threads(2, lambda: meeting.reachable_place(session_of_two_hosts()))


def test_own_addresses_are_no_loopback_and_end_with_the_name(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "192.0.2.7")
    monkeypatch.setattr(socket, "gethostname", lambda: "host7")
    found = meeting._own_addresses()
    assert found[0] == "192.0.2.7"
    assert found[-1] == "host7"
    assert not any(address.startswith("127.") for address in found)


def test_sync_batch_norm_without_a_process_group_warns():
    net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
    net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)
    session = SimpleNamespace(world_size=2, agree=lambda *_: None)
    with pytest.warns(UserWarning, match="SyncBatchNorm, which looks for other ranks in torch"):
        compare_modules(session, net)


@pytest.mark.parametrize("algorithm", ["async_gossip", {"name": "async_gossip"}])
def test_ranks_that_make_different_numbers_of_steps_are_refused(algorithm):
    with pytest.raises(gs.ConfigError, match="Lightning waits for all ranks at the same steps"):
        refuse_asynchronous("Lightning", {"algorithm": algorithm})
    refuse_asynchronous("Lightning", {"algorithm": "gossip"})


PROCESS_GROUP = """
import torch
import gossamer as gs
from gossamer.integrations.meeting import begin_process_group

rank, _ = gs.initialize_dist()
begin_process_group()
total = torch.tensor([rank + 1.0])
torch.distributed.all_reduce(total)
assert total.item() == 3.0
if rank == 0:
    print("has done it")
"""


def test_a_process_group_begins_under_torchrun(tmp_path):
    """Torchrun serves a store of its own, and says so to PyTorch."""
    path = tmp_path / "group.py"
    path.write_text(PROCESS_GROUP)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = run_python([*torchrun, str(path)])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "has done it" in done.stdout


def test_libraries_that_wait_for_all_ranks_of_the_beginning_are_refused():
    def work():
        with pytest.raises(gs.ConfigError, match=r"survive=True, and Lightning deals data, which"):
            refuse_survival("Lightning", "deals data")
        return True

    assert gs.run_threads(2, work, survive=True) == [True, True]
    gs.run_threads(2, lambda: refuse_survival("Lightning", "deals data"))
