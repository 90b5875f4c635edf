"""Runs of sharded models that lose nodes, and take others in.

Three nodes of two ranks train. A rank of the third node is killed, and the rest of that node ends.
A new node of two ranks joins the others, and all train to the end. The ranks are processes.
"""

from __future__ import annotations

import json
import os
import signal
from types import SimpleNamespace

import pytest
import torch
from test_sharded import VERSION, ends_of, once, start

import gossamer as gs
from gossamer.mates import check_node

pytestmark = pytest.mark.skipif(VERSION < (2, 6), reason="fully_shard() is private there")

# The algorithm of each run, and what the rank does whose mate is killed.
RUNS = {"gossip": "stay", "allreduce": "hang", "outer": "stay"}


def play(folder, algorithm):
    """Return the ends of the ranks of all nodes, the new one's last."""
    meeting = folder / f"members-{algorithm}"
    meeting.mkdir()

    def start_node(node, roles):
        return start("sharded_members.py", 2, (meeting, node, algorithm, roles))

    roles = ["stay,stay", "stay,stay", f"die,{RUNS[algorithm]}"]
    processes = [p for node in range(3) for p in start_node(node, roles[node])]
    try:
        for process in processes[4:]:
            process.wait(timeout=300)
        processes += start_node(2, "join,join")
    finally:
        ends = ends_of(processes, 300)
    return ends


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


# How ranks go on under outer, test_survival.py has as well.
@pytest.fixture(
    scope="module",
    params=[pytest.param(n, marks=pytest.mark.wide if n == "outer" else ()) for n in RUNS],
)
def run(request, folder):
    name = request.param
    ends = once(folder, f"members-{name}", lambda: play(folder, name))
    alive = [end for i, end in enumerate(ends) if i not in (4, 5)]
    assert [code for code, _, _ in alive] == [0] * 6, alive[0][2] + alive[-1][2]
    return SimpleNamespace(
        name=name, lost=ends[4:6], ranks=[json.loads(out) for _, out, _ in alive], errors=alive
    )


def test_the_other_nodes_go_on_without_a_node_and_then_with_a_new_one(run):
    assert [rank["sizes"] for rank in run.ranks[:4]] == [[2, 3]] * 4


def test_the_rest_of_a_node_ends_when_a_rank_is_lost(run):
    (killed, _, _), (code, _, error) = run.lost
    assert killed == -signal.SIGKILL
    assert code == (74 if RUNS[run.name] == "hang" else 1)
    assert "as a whole" in error
    lost = (
        "the rank at place 0 of this rank's node is lost"
        if RUNS[run.name] == "hang"
        else "communication with rank 4 (node 2, place 0): "
    )
    assert lost in error


def test_places_see_the_nodes_in_one_order(run):
    found = [(rank["node"], rank["place"]) for rank in run.ranks]
    assert found == [(node, place) for node in range(3) for place in range(2)]
    assert all(rank["members"] == [0, 1, 2, 3, 6, 7] for rank in run.ranks)


def test_a_new_node_has_the_shards_of_the_mean(run):
    if run.name == "allreduce":
        pytest.skip("a new node gets the model behind the step in which it was let in")
    for place in range(2):
        found = [rank["admitted"] for rank in run.ranks if rank["place"] == place]
        assert found == [found[0]] * 3


def test_a_new_node_has_the_steps_and_the_optimizer_of_the_others(run):
    steps = run.ranks[0]["steps"]
    assert steps > 20
    assert all(rank["steps"] == steps for rank in run.ranks)
    assert all(rank["updates"] == [steps] for rank in run.ranks)
    assert all(rank["lr"] == 0.01 for rank in run.ranks)


def test_all_nodes_end_with_one_mean(run):
    for place in range(2):
        found = [rank["mean"] for rank in run.ranks if rank["place"] == place]
        assert found == [found[0]] * 3


def test_losses_fall(run):
    for rank in run.ranks:
        first, last = rank["losses"]
        assert last < first


def test_one_process_group_over_all_nodes_is_refused(run):
    for rank in run.ranks:
        assert len(rank["refused"]) == 2
        assert all("one process group of PyTorch, which ends" in text for text in rank["refused"])


def test_a_session_that_knows_no_nodes_is_refused():
    with pytest.raises(gs.ConfigError, match=r"allowed: a torchrun job for each node with"):
        check_node(SimpleNamespace(is_elastic=True, place=-1))


def test_a_node_joins_after_its_ranks_have_met(monkeypatch, tmp_path):
    assert not torch.distributed.is_initialized()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(gs.ConfigError, match=r"after torch.distributed.init_process_group\(\)"):
        gs.initialize_dist(survive=True, nodes=3, node=3, join=f"file:{tmp_path}")
