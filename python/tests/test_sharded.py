"""Models that fully_shard() has sharded inside a node, and that gossip between nodes.

The ranks are processes, which run all cases of a number of ranks one after the other.
"""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import pytest
import torch
from conftest import environment, free_port

import gossamer as gs

HERE = pathlib.Path(__file__).parent
VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])

pytestmark = pytest.mark.skipif(VERSION < (2, 6), reason="fully_shard() is private there")


class Rank(NamedTuple):
    """A rank of a job, whose process writes the ends of all its ranks into a file."""

    job: subprocess.Popen[bytes]
    ends: int
    index: int

    def wait(self, timeout):
        """Wait for all ranks of the job."""
        self.job.wait(timeout)

    def end(self, limit_s):
        """Return the code, the output and the errors of the rank, which is killed if it hangs."""
        try:
            self.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.job.terminate()
            self.wait(60)
        return json.loads(pathlib.Path(f"/proc/self/fd/{self.ends}").read_text())[self.index]


def start(program, ranks, arguments=()):
    """Start a process for each rank, as torchrun does."""
    ends = os.memfd_create("ends")
    job = subprocess.Popen(
        [sys.executable, str(HERE / "forked_ranks.py"), str(HERE / program), *map(str, arguments)],
        env=environment()
        | {"WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
        | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())},
        stdout=ends,
    )
    return [Rank(job, ends, index) for index in range(ranks)]


def ends_of(ranks, limit_s=400):
    """Return the codes, the outputs and the errors of ranks, which are killed if they hang."""
    limit = time.monotonic() + limit_s
    return [rank.end(max(1.0, limit - time.monotonic())) for rank in ranks]


def once(folder, name, run):
    """Return what `run` returns, which one of pytest's workers calls, alone."""
    path = folder / f"sharded-{name}.json"
    with open(folder / "sharded.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            path.write_text(json.dumps(run()))
        return json.loads(path.read_text())


def results_of(folder, ranks):
    """Return what all cases of a number of ranks return, by (nodes and places, case)."""
    ends = once(folder, ranks, lambda: ends_of(start("sharded_cases.py", ranks)))
    assert [code for code, _, _ in ends] == [0] * ranks, ends[0][2]
    found = [json.loads(line) for line in ends[0][1].splitlines()]
    return {(world, name): value for world, name, value in found}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="module")
def of_four(folder):
    return {name: value for (_, name), value in results_of(folder, 4).items()}


@pytest.fixture(scope="module")
def of_eight(folder):
    return results_of(folder, 8)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_steps_are_those_of_unsharded_replicas_that_gossip(of_four, optimizer):
    assert of_four[f"{optimizer} in float64"] <= 1e-12
    assert of_four[f"{optimizer} in float32"] <= 1e-6


@pytest.mark.parametrize("world", ["4x2", "2x4"])
def test_steps_of_eight_ranks_are_those_of_unsharded_replicas(of_eight, world):
    assert of_eight[world, "float64"] <= 1e-12
    assert of_eight[world, "float32"] <= 1e-6


def test_a_node_may_sit_a_round_out(of_eight):
    assert of_eight["4x2", "ring"] <= 1e-12


def test_each_place_has_a_partner_of_its_own(of_eight):
    assert of_eight["4x2", "spread"] <= 1e-12


@pytest.mark.parametrize(
    "case",
    [
        "one group",
        "tied weights",
        "clipped",
        "three micro-batches",
        "offload",
        "kept gathered",
        "shards of columns",
    ],
)
def test_what_fully_shard_offers(of_four, case):
    assert of_four[case] <= 1e-12


def test_mixed_precision(of_four):
    assert of_four["bfloat16"] <= 1e-6


def test_tensor_parallelism(of_four):
    difference, distance, _ = of_four["tensor parallelism"]
    assert difference <= 1e-12
    assert abs(distance) <= 1e-12


def test_a_sampler_deals_over_the_ranks_that_shard(of_four):
    assert of_four["samples"] == [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]]]


def test_ranks_of_one_tensor_parallel_group_get_the_same_samples(of_four):
    samples = of_four["tensor parallelism"][2]
    assert samples == [[[0, 1], [4, 5]]] * 2 + [[[2, 3], [6, 7]]] * 2


def test_the_mean_of_all_nodes(of_four):
    found = of_four["mean"]
    assert found["mean"] <= 1e-12
    assert found["distance"] <= 1e-12


def test_no_gathered_parameter_outlives_the_scope(of_four):
    found = of_four["mean"]
    assert found["loss is another inside"]
    assert found["loss after"] == 0.0


def test_the_mean_may_stay(of_four):
    assert of_four["kept mean"] == 0.0


def test_buffers_begin_as_those_of_node_0_and_are_averaged_over_all_ranks(of_four):
    # Of places 0 and 1 of node 0, of ranks 0 to 3, and the largest again.
    assert of_four["buffers"] == [1.0, 1.5, 3.0]


@pytest.mark.parametrize(
    "algorithm",
    [
        "gossip",
        "outer",
        "outer of pairs",
        "late outer",
        "gradient_tracking",
        "late_average",
        "relay",
        "choco",
    ],
)
def test_algorithms_do_what_they_do_unsharded(of_four, algorithm):
    assert of_four[algorithm] <= 1e-12


def test_without_communication_nodes_train_alone(of_four):
    assert of_four["local"] <= 1e-12


def test_allreduce_is_hsdp(of_four):
    assert of_four["allreduce is hsdp"] <= 1e-12


def test_under_allreduce_the_mean_gradient_is_clipped(of_four):
    assert of_four["allreduce is hsdp, clipped"] <= 1e-12


@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_codecs_change_little(of_four, codec):
    assert 0 < of_four[f"codec {codec}"][0] < 0.01


def test_codecs_change_the_bytes(of_four):
    # A parameter's float32 elements fill a multiple of 32.
    assert of_four["codec bf16"][1:] == [544 * 2, 544 * 4]
    assert of_four["codec int8"][1] < 544 * 4
    _, sent, plain = of_four["codec topk"]
    assert sent < plain / 50


def test_a_rank_sends_its_padded_shard_in_every_step(of_four):
    # 194 elements of 356 / 2, each parameter's rounded up to 16, in float64.
    assert of_four["bytes"] == [368 * 8] * 4


def test_places_and_nodes(of_four):
    assert of_four["places"] == [[0, 0, 0, 2], [0, 1, 0, 2], [1, 0, 1, 2], [1, 1, 1, 2]]


def test_a_timeline_shows_the_ranks_of_place_0(of_four):
    assert of_four["timeline"] == [0, 2]


def test_load_state_dict_between_steps(of_four):
    difference, goes_on, is_at_home = of_four["loaded"]
    assert difference == 0.0
    assert goes_on
    assert is_at_home


def test_a_node_without_a_batch_makes_the_steps_of_the_others(of_four):
    assert of_four["without a batch"] == [4.0, -4.0]


def test_the_optimizer_keeps_the_exchanges_going(of_four):
    assert of_four["forgotten"] <= 1e-12


REFUSALS = {
    "replicates": r"parameter scale is sharded over a mesh whose dimension node sums gradients "
    r'over 2 nodes, allowed: the node\'s own mesh, as mesh\["shard"\]',
    "several nodes": r"sharded over the ranks \[0, 1, 2, 3\], which are of several nodes, allowed",
    "alone": "sharded over 1 of the 2 ranks of its node",
    "ddp": r"the module is in DistributedDataParallel, allowed: fully_shard\(\)",
    "whole": r"parameter scale is trained and not sharded, so its gradients differ inside the "
    r"node, allowed: fully_shard\(\) of the part that has it",
    "special": "parameter head.weight is a Tensor, which FSDP gathers in a way of its own, "
    "allowed: plain tensors",
    "pinned": r"in pinned memory, .*, allowed: CPUOffloadPolicy\(pin_memory=False\)",
    "meta": r"parameter scale has no memory yet, allowed: after to_empty\(\) and the initial",
    "sum": r"the mean of the node's process group is a sum \(pytorch#162338\), allowed: a newer",
    "old torch": r"fully_shard\(\) of torch .* is private, allowed: 2.6 and later",
    "bfloat16 parameters": "parameter scale is torch.bfloat16, allowed: float32 and float64",
    "optimizer": r"has 0 of the module's 15 trained parameters, .*, made after fully_shard\(\)",
    "models": r"rank 0 \(node 0, place 0\) has .* rank 2 \(node 1, place 0\) has ",
    "codecs": r"their options: .*rank 1 \(node 0, place 1\)",
    "no mesh": r"mesh: is None, and torch.distributed connects 4 ranks, .*, nodes=, node=\)",
    "dimension": r'nodes: is "replicate", and the mesh has the dimensions \[\'node\', \'shard\'\]',
    "small mesh": "and the session has 4 ranks, .* allowed: a mesh of all ranks of the session",
    "node_gossip": 'algorithm: is "node_gossip": it shards inside a node what every rank holds',
    "async_gossip": 'algorithm: is "async_gossip": each place would mix with shards of other steps',
    "grad_clip": r"would clip its shard for itself, allowed: .*clip_grad_norm_\(\) before step\(\)",
    "nonfinite": 'nonfinite: is "skip", by which ranks of a node would leave out steps one by one',
    "gathered": r"is gathered while step\(\) writes its shards, as after "
    r"set_reshard_after_backward\(False\), allowed: reshard\(\) before step\(\)",
    "replaced": r"was replaced since it was wrapped, as by load_state_dict\(assign=True\), "
    "allowed: assign=False",
    "scaler": r"a skipped step\(\) would leave the other nodes waiting, allowed: bfloat16",
    "thawed": r"parameters that are trained only now, allowed: to call finish\(\)",
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(of_four, case):
    assert re.search(r"^ConfigError: .*" + REFUSALS[case], of_four[case], re.DOTALL), of_four[case]


def test_ranks_that_are_threads_are_refused():
    def work():
        net = torch.nn.Linear(2, 2)
        gs.ShardedGossip(net, torch.optim.SGD(net.parameters()))

    with pytest.raises(gs.ConfigError, match=r"in run_threads\(\), .* ranks that are processes"):
        gs.run_threads(2, work)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nodes": 2}, "nodes: is 2, and node: is -1, allowed: the number of jobs"),
        ({"nodes": 2, "node": 2}, "nodes: is 2, and node: is 2, allowed"),
        ({"node": 0}, "nodes: is 0, and node: is 0, allowed"),
        ({"nodes": 2, "node": 0, "world_size": 4}, "world_size and rank follow from nodes"),
        ({"nodes": 2, "node": 0, "rendezvous": ""}, "the jobs do not know of one another"),
        ({"nodes": 2, "node": 0, "rendezvous": "slurm"}, "the jobs do not know of one another"),
        ({"nodes": 2, "node": 0}, "this process is in no job of a node, as WORLD_SIZE"),
    ],
)
def test_jobs_of_nodes_that_cannot_meet(monkeypatch, tmp_path, given, message):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(gs.ConfigError, match=message):
        gs.initialize_dist(**{"rendezvous": f"file:{tmp_path}"} | given)


@pytest.fixture(scope="module")
def ends_of_jobs(folder):
    """The ends of node 0's and node 1's ranks, where node 1 loses its place 0."""

    def run():
        meeting = folder / "meeting"
        meeting.mkdir()
        processes = [p for i in (0, 1) for p in start("sharded_jobs.py", 2, (meeting, i))]
        return ends_of(processes)

    return once(folder, "jobs", run)


def test_each_node_may_have_a_job_of_its_own(ends_of_jobs):
    lines = [json.loads(out) for _, out, _ in ends_of_jobs]
    assert [line[:4] for line in lines] == [[0, 4, 0, 0], [1, 4, 0, 1], [2, 4, 1, 0], [3, 4, 1, 1]]
    assert all(is_apart for *_, is_apart in lines)


def test_nodes_with_jobs_of_their_own_have_one_mean(ends_of_jobs):
    norms = {json.loads(out)[4] for _, out, _ in ends_of_jobs}
    assert len(norms) == 1


def test_all_ranks_end_when_one_is_killed(ends_of_jobs):
    # Node 1's other rank waits in the process group of PyTorch, which ends it.
    codes = [code for code, _, _ in ends_of_jobs]
    assert codes[2] == -signal.SIGKILL
    assert all(code > 0 for i, code in enumerate(codes) if i != 2), codes


def test_messages_name_node_and_place_of_a_rank_that_was_killed(ends_of_jobs):
    for rank in (0, 1, 3):
        error = ends_of_jobs[rank][2]
        assert re.search(r"rank [23] \(node 1, place [01]\)", error), error
