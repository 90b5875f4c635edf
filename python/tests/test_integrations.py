"""Training loops of other libraries, alone and under mpirun."""

from __future__ import annotations

import textwrap

import pytest
from conftest import needs_mpi, run_python

PROCESSES = pytest.mark.parametrize("num_processes", [1, pytest.param(2, marks=needs_mpi)])


def run(tmp_path, program, num_processes):
    """Run a program, whose assertions are the test."""
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(program))
    done = run_python(
        ["-W", "error:parameters were written:UserWarning", str(path), str(tmp_path)], num_processes
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "has done it" in done.stdout


LIGHTNING = """
import logging, os, sys
import torch, lightning
from torch.utils.data import DistributedSampler
import gossamer as gs
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

    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch, index):
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
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

module, start = train(30, algorithm="gossip", topology="ring")
loss = torch.nn.functional.mse_loss(module.net(x), y).item()
assert loss < 0.1, loss
print(f"rank {gs.current_session().rank} has done it\\n", flush=True)
"""


@PROCESSES
def test_lightning(tmp_path, num_processes):
    pytest.importorskip("lightning")
    run(tmp_path, LIGHTNING, num_processes)


TRANSFORMERS = """
import os, sys
import torch, transformers
import gossamer as gs
from gossamer.integrations.transformers import GossamerTrainer, meet_accelerate

ON_GPU = os.environ.get("GOSSAMER_TEST_DEVICE", "cpu") != "cpu"
meet_accelerate()
texts = (torch.arange(64)[:, None] + torch.arange(16)) % 32
data = [{"input_ids": text, "labels": text} for text in texts]


def train(kind, **options):
    transformers.set_seed(1)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    ))
    arguments = transformers.TrainingArguments(
        sys.argv[1], use_cpu=not ON_GPU, num_train_epochs=4, per_device_train_batch_size=4,
        gradient_accumulation_steps=2, learning_rate=0.01, report_to=[], save_strategy="epoch",
        eval_strategy="epoch", disable_tqdm=True,
    )
    trainer = kind(model, arguments, train_dataset=data, eval_dataset=data, **options)
    trainer.train()
    return trainer


def flat(model):
    return torch.cat([p.detach().cpu().flatten() for p in model.parameters()])


plain = train(transformers.Trainer)
trainer = train(GossamerTrainer)
difference = (flat(trainer.model) - flat(plain.model)).abs().max()
assert difference < 1e-4, difference

options = {"algorithm": "gossip", "topology": "ring"}
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


def test_transformers_that_does_not_know_of_the_processes(tmp_path):
    pytest.importorskip("transformers")
    program = """
    import sys, torch, transformers
    import gossamer as gs
    from gossamer.integrations.transformers import GossamerTrainer

    arguments = transformers.TrainingArguments(sys.argv[1], use_cpu=True)
    gs.integrations.transformers.initialize_dist = lambda: (0, 2)
    try:
        GossamerTrainer(torch.nn.Linear(1, 1), arguments)
    except gs.ConfigError as error:
        assert "Accelerate knows 1 processes, and gossamer 2, allowed" in str(error)
        print("has done it")
    """
    run(tmp_path, program, 1)
