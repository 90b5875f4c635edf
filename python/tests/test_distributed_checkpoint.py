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

folder, *work = sys.argv[1:]
gs.initialize_dist()
torch.set_num_threads(1)
begin_process_group()
for does in work:
    model = make("rmsprop")
    state = {"run": gs.dcp_state(model, reshape="average" if does == "begins" else "same")}
    if does == "saves":
        train(model, 5)
        dcp.save(state, checkpoint_id=folder)
    else:
        dcp.load(state, checkpoint_id=folder)
    at = model.num_steps, digest(flat(model).tolist())
    train(model, 8)
    print(does, rank(), *at, digest(flat(model).tolist()))
    model.finish()
"""


def test_ranks_save_their_own_state_and_one_mean_model(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def run(num_ranks, *work):
        command = [sys.executable, "-m", "gossamer.launch", "-n", str(num_ranks), str(script)]
        done = subprocess.run(
            [*command, str(tmp_path / "saved"), *work],
            capture_output=True,
            text=True,
            env=environment(),
            check=True,
        )
        lines = [s.split() for s in done.stdout.splitlines() if s.startswith(work)]
        return [sorted(line[1:] for line in lines if line[0] == does) for does in work]

    saved, loaded = run(2, "saves", "loads")
    assert [end[:2] for end in saved] == [["0", "5"], ["1", "5"]]
    assert saved[0][3] != saved[1][3]
    assert loaded == saved
    # PyTorch alone, in one process.
    net = make_mlp()
    dcp.load({"run": {"model": net.state_dict()}}, checkpoint_id=tmp_path / "saved", no_dist=True)
    assert loss_of(net, 0, 0) < loss_of(make_mlp(), 0, 0)
    (begin,) = run(3, "begins")
    assert [at[:3] for at in begin] == [[str(r), "0", digest(flat(net).tolist())] for r in range(3)]
