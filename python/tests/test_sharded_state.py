"""What torch.distributed.checkpoint saves and loads of sharded nodes that gossip."""

from __future__ import annotations

import json

import pytest
import torch
import torch.distributed.checkpoint as dcp
from test_sharded import ends_of, folder, once, pytestmark, start
from torch import nn

import gossamer as gs

__all__ = ["folder", "pytestmark"]


def results(what, ranks, folder):
    """Return what each rank has printed."""
    checkpoints = folder / "sharded-checkpoints"
    ends = once(
        folder,
        f"state-{what}-{ranks}",
        lambda: ends_of(start("sharded_state_cases.py", ranks, [what, checkpoints])),
    )
    assert [code for code, _, _ in ends] == [0] * ranks, "\n".join(err for _, _, err in ends)
    return [json.loads(out.splitlines()[-1]) for _, out, _ in ends]


@pytest.fixture(scope="module")
def saved(folder):
    """The folder of checkpoints of 2 nodes with 2 ranks each, and how these ranks went on."""
    return folder, results("save", 4, folder)


def test_a_run_goes_on_bit_for_bit(saved):
    folder, ended = saved
    assert results("same", 4, folder) == ended


def test_another_number_of_shards_goes_on_with_the_same_parameters(saved):
    folder, ended = saved
    found = results("shards", 2, folder)
    for name in ended[0].keys() - {"int8"}:
        for node in range(2):
            assert found[node][name][1] == ended[2 * node][name][1], name


def test_plain_pytorch_loads_the_mean_model(saved):
    folder, _ = saved
    net = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.BatchNorm1d(9), nn.Linear(9, 5))
    before = net[0].weight.detach().clone()
    dcp.load(
        {"run": {"model": net.state_dict()}},
        checkpoint_id=folder / "sharded-checkpoints" / "gossip",
        no_dist=True,
    )
    assert not torch.equal(net[0].weight, before)
    assert net[0].weight.isfinite().all()


def test_the_mean_is_a_new_beginning_for_any_nodes(saved):
    folder, _ = saved
    for rank in results("average", 2, folder):
        for name, (_, distance) in rank.items():
            assert distance < 1e-6, name


def test_a_wrapper_without_shards_has_no_state_by_shards():
    with pytest.raises(gs.ConfigError, match='reshape: is "shards", allowed: "same", "average"'):
        gs.dcp_state(nn.Linear(2, 2), reshape="shards")
