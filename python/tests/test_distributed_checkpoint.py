"""States that torch.distributed.checkpoint saves and loads."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from conftest import alone, digest, environment, flat, loss_of, make_mlp
from test_checkpoints import make, train

import gossamer as gs

dcp = pytest.importorskip("torch.distributed.checkpoint")


@pytest.mark.parametrize("optimizer", ["adamw", "rmsprop"])
def test_a_run_goes_on_bit_for_bit(tmp_path, optimizer):
    def first():
        model = make(optimizer)
        train(model, 5)
        dcp.save({"run": gs.dcp_state(model)}, checkpoint_id=tmp_path, no_dist=True)
        train(model, 9)
        return flat(model).clone()

    def second():
        model = make(optimizer)
        dcp.load({"run": gs.dcp_state(model)}, checkpoint_id=tmp_path, no_dist=True)
        assert model.num_steps == 5
        train(model, 9)
        return flat(model).clone()

    assert torch.equal(alone(first), alone(second))


SCRIPT = """
import sys
import torch, torch.distributed.checkpoint as dcp
import gossamer as gs
from conftest import digest, flat, rank
from gossamer.integrations.meeting import begin_process_group
from test_checkpoints import make, train

folder, does = sys.argv[1:]
gs.initialize_dist()
torch.set_num_threads(1)
begin_process_group()
model = make("rmsprop")
state = {"run": gs.dcp_state(model, reshape="average" if does == "begins" else "same")}
if does != "saves":
    dcp.load(state, checkpoint_id=folder)
    print("at", model.num_steps, rank(), digest(flat(model).tolist()))
if does == "saves":
    train(model, 5)
    dcp.save(state, checkpoint_id=folder)
train(model, 8)
print("end", rank(), digest(flat(model).tolist()))
"""


def test_ranks_save_their_own_state_and_one_mean_model(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def run(num_ranks, does):
        command = [sys.executable, "-m", "gossamer.launch", "-n", str(num_ranks), str(script)]
        done = subprocess.run(
            [*command, str(tmp_path / "saved"), does],
            capture_output=True,
            text=True,
            env=environment(),
            check=True,
        )
        return sorted(s for s in done.stdout.splitlines() if s.startswith(("at", "end")))

    whole = run(2, "saves")
    assert len(set(whole)) == 2
    assert run(2, "loads")[2:] == whole
    # PyTorch alone, in one process.
    net = make_mlp()
    dcp.load({"run": {"model": net.state_dict()}}, checkpoint_id=tmp_path / "saved", no_dist=True)
    assert loss_of(net, 0, 0) < loss_of(make_mlp(), 0, 0)
    begin = run(3, "begins")[:3]
    assert begin == [f"at 0 {r} {digest(flat(net).tolist())}" for r in range(3)]
