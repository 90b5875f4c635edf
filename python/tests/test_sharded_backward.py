"""Sharded models whose steps backward() makes."""

from __future__ import annotations

import json

import pytest
from test_sharded import ends_of, folder, once, pytestmark, start

__all__ = ["folder", "pytestmark"]


@pytest.fixture(scope="module")
def found(folder):
    """What the ranks of 2 nodes with 2 places have found."""
    arguments = [folder / "sharded-backward"]
    ends = once(
        folder, "backward", lambda: ends_of(start("sharded_backward_cases.py", 4, arguments))
    )
    assert [code for code, _, _ in ends] == [0] * 4, "\n".join(err for _, _, err in ends)
    return [json.loads(out.splitlines()[-1]) for _, out, _ in ends]


@pytest.mark.parametrize(
    ("case", "limit"),
    [("sgd", 1e-12), ("adamw", 1e-12), ("adamw float32", 1e-6), ("rmsprop", 1e-12)],
)
def test_steps_are_those_of_unsharded_replicas(found, case, limit):
    assert max(rank[case] for rank in found) < limit


def test_gradients_are_clipped_by_the_norm_of_the_node(found):
    assert max(rank["clip"] for rank in found) < 1e-12


def test_a_bad_gradient_skips_the_step_on_all_ranks_of_all_nodes(found):
    assert [rank["skipped"] for rank in found] == [1, 1, 1, 1]


@pytest.mark.parametrize("optimizer", ["adamw", "rmsprop"])
def test_a_run_goes_on_bit_for_bit(found, optimizer):
    for rank in found:
        went_on, loaded = rank[f"{optimizer} goes on"]
        assert went_on == loaded


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("older graph", "backward() of a forward pass from before the last update"),
        ("per_bucket", 'grad_clip: is "per_bucket"'),
        ("muon", "sees a shard only"),
        ("node_gossip", 'algorithm: is "node_gossip"'),
    ],
)
def test_what_cannot_work_is_refused(found, case, message):
    assert message in found[0]["refused"][case]
