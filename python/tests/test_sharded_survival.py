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

# By the algorithm of each run: the node that is lost, and what the mate does of the killed rank.
RUNS = {
    "gossip": (2, "stay"),
    "allreduce": (0, "hang"),
    "outer": (0, "stay"),
    "gradient_tracking": (2, "stay"),
}
FURTHER = ("outer", "gradient_tracking")
SAMPLES = 240


def start_node(meeting, node, case, roles):
    return start("sharded_members.py", roles.count(",") + 1, (meeting, node, case, roles))


def play(folder, name):
    """Return the ends of the ranks of all nodes, the new one's last."""
    meeting = folder / f"members-{name}"
    meeting.mkdir()
    lost, mate = RUNS[name]
    processes = []
    for node in range(3):
        roles = f"die,{mate}" if node == lost else "stay,stay"
        processes += start_node(meeting, node, name, roles)
    try:
        for process in processes[2 * lost : 2 * lost + 2]:
            process.wait(timeout=300)
        processes += start_node(meeting, 2, name, "join,join")
    finally:
        ends = ends_of(processes, 300)
    return ends


def play_again(folder):
    """Return the ends of two ranks that begin from what the run of gossip has saved."""
    meeting = folder / "members-gossip"
    (meeting / "load").mkdir()
    processes = [p for node in range(2) for p in start_node(meeting, node, "gossip", "load")]
    return ends_of(processes, 300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def run_of(folder, name):
    ends = once(folder, f"members-{name}", lambda: play(folder, name))
    first = 2 * RUNS[name][0]
    alive = ends[:first] + ends[first + 2 :]
    assert [code for code, _, _ in alive] == [0] * 6, alive[0][2] + alive[-1][2]
    return SimpleNamespace(
        name=name,
        folder=folder / f"members-{name}",
        lost=ends[first : first + 2],
        numbers=[first, first + 1],
        ranks=[json.loads(out) for _, out, _ in alive],
    )


def marked(name):
    """Leave the further algorithms to the wide tests, because single ranks show how they go on."""
    return pytest.param(name, marks=pytest.mark.wide if name in FURTHER else ())


@pytest.fixture(scope="module", params=[marked(name) for name in RUNS])
def run(request, folder):
    return run_of(folder, request.param)


def test_the_other_nodes_go_on_without_a_node_and_then_with_a_new_one(run):
    assert [rank["sizes"] for rank in run.ranks[:4]] == [[2, 3]] * 4


def test_the_rest_of_a_node_ends_when_a_rank_is_lost(run):
    (killed, _, _), (code, _, error) = run.lost
    assert killed == -signal.SIGKILL
    hangs = RUNS[run.name][1] == "hang"
    assert code == (74 if hangs else 1)
    assert "as a whole" in error
    lost = (
        "the rank at place 0 of this rank's node is lost"
        if hangs
        else f"communication with rank {run.numbers[0]} (node {RUNS[run.name][0]}, place 0): "
    )
    assert lost in error


def test_places_see_the_nodes_in_one_order(run):
    found = [(rank["node"], rank["place"]) for rank in run.ranks]
    assert found == [(node, place) for node in range(3) for place in range(2)]
    left = [n for n in range(8) if n not in run.numbers]
    assert all(rank["members"] == left for rank in run.ranks)


def test_callbacks_are_told_of_all_ranks_of_a_node(run):
    for rank in run.ranks[:4]:
        assert [change[1:] for change in rank["changes"]] == [[run.numbers, []], [[], [6, 7]]]


def test_a_new_node_has_the_shards_of_the_mean(run):
    if run.name in ("allreduce", "gradient_tracking"):
        pytest.skip("a new node has made steps without a batch before it looks")
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


@pytest.mark.parametrize("name", ["allreduce", marked("gradient_tracking")])
def test_a_sampler_deals_each_sample_once(folder, name):
    run = run_of(folder, name)
    files = [run.folder / f"ledger-{RUNS[name][0]}-{place}.json" for place in range(2)]
    lost = [json.loads(file.read_text()) for file in files]
    assert [len(ledger) for ledger in lost] == [5, 5]
    # What the lost node has trained with in steps that the others have made as well.
    step = run.ranks[0]["changes"][0][0]
    assert step >= 5
    epochs = {}
    for ledger in [*lost, *(rank["ledger"] for rank in run.ranks)]:
        for epoch, samples in ledger:
            epochs.setdefault(epoch, []).extend(samples)
    assert len(epochs) > 2
    for epoch, samples in epochs.items():
        assert len(samples) == len(set(samples)), epoch
    last = max(epochs)
    assert len(epochs[last]) == SAMPLES
    # Lost are at most 5 batches of each lost rank, which a loader has fetched ahead, and at the end
    # less than a batch of each rank.
    assert len(epochs[0]) >= SAMPLES - 2 * 2 * 5 - 8
    assert all(len(samples) > SAMPLES - 12 for e, samples in epochs.items() if e > 0)


def test_places_train_with_samples_of_their_own(folder):
    run = run_of(folder, "allreduce")
    last = run.ranks[0]["ledger"][-1]
    assert len({tuple(rank["ledger"][-1][1]) for rank in run.ranks}) == 6
    assert all(rank["ledger"][-1][0] == last[0] for rank in run.ranks)


def test_a_run_goes_on_from_what_its_nodes_have_saved(folder):
    assert all(rank["goes on"] for rank in run_of(folder, "gossip").ranks)


def test_other_nodes_begin_from_the_mean_that_was_saved(folder):
    mean = sum(rank["mean"] for rank in run_of(folder, "gossip").ranks[:2])
    ends = once(folder, "members-load", lambda: play_again(folder))
    assert [code for code, _, _ in ends] == [0, 0], ends[0][2]
    one, other = (json.loads(out) for _, out, _ in ends)
    assert one == other
    assert one[0] == pytest.approx(mean, rel=1e-12)
    assert one[1] != one[0]


def test_the_next_rank_0_writes_the_records_of_all_nodes(folder):
    run = run_of(folder, "allreduce")
    steps = run.ranks[0]["steps"]
    lines = (run.folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    by_kind = {
        kind: [r for r in records if r["kind"] == kind] for kind in ("step", "members", "final")
    }
    every = sorted({*range(4, steps, 4), steps})
    assert [record["step"] for record in by_kind["step"]] == every
    assert by_kind["step"][0]["members"] == [0, 1, 2, 3, 4, 5]
    assert by_kind["step"][-1]["members"] == [2, 3, 4, 5, 6, 7]
    assert len(by_kind["step"][-1]["rank_loss"]) == 6
    assert [[r["lost"], r["joined"]] for r in by_kind["members"]] == [[[0, 1], []], [[], [6, 7]]]
    assert len(by_kind["final"]) == 1
    status = json.loads((run.folder / "run" / "status.json").read_text(encoding="utf-8"))
    assert (status["state"], status["members"]) == ("done", [2, 3, 4, 5, 6, 7])


@pytest.mark.wide
def test_momentum_tracking_trains_nodes_that_may_be_lost(folder):
    ranks = run_of(folder, "gradient_tracking").ranks
    first, last, means = zip(*(rank["momentum_tracking"] for rank in ranks), strict=True)
    # The nodes make the mean of their losses smaller. One node's own may rise.
    assert sum(last) < sum(first)
    assert means == means[:2] * 3


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
