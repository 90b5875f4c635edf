"""Simulations and plans, and the examples of the documents."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from test_topologies import Circle, Ring, period_of

import gossamer as gs

ROOT = Path(__file__).parents[2]
BUCKETS = {"bucket_bytes": [1e6, 4e6], "compute_ms": 20}


def test_simulated_ranks_near_their_mean_as_the_matrices_say():
    n = 8
    result = gs.simulate(world_size=n, topology="ring", rounds=120, dim=4)
    radius = np.abs(np.linalg.eigvals(period_of(gs.topology("ring", n)) - 1 / n)).max()
    assert result["measured_factor_per_period"] == pytest.approx(radius, abs=1e-3)
    assert result["spectral_gap"] == pytest.approx(1 - radius, abs=1e-7)
    points = result["points"]
    assert set(points) == {"round", "consensus_distance"}
    assert points["round"][-1] == 120
    assert len(points["round"]) == len(points["consensus_distance"])
    assert points["consensus_distance"][-1] < 1e-3 * points["consensus_distance"][0]
    assert gs.simulate(world_size=n, topology="complete", rounds=3)["exact_after"] == 1


def test_an_own_topology_is_simulated_as_the_built_in_one():
    training = {
        "kind": "sgd",
        "rounds": 60,
        "dim": 5,
        "optimizer": {"name": "sgd", "lr": 0.05},
        "problem": {"name": "quadratic", "heterogeneity": 2},
    }
    own, built_in = (
        gs.simulate(world_size=6, threads=threads, topology=topology, **training)
        for threads, topology in [(1, Ring()), (2, "ring")]
    )
    assert (own.pop("topology"), built_in.pop("topology")) == ("Ring", "ring")
    assert own == built_in
    assert own["steady"]["consensus_distance"] > 0
    assert own["points"]["excess_loss"][-1] < own["points"]["excess_loss"][0]
    circle = gs.simulate(world_size=5, topology=Circle(), rounds=200)
    assert circle["points"]["consensus_distance"][-1] < 1e-9


def test_a_plan_has_the_rounds_of_its_topologies():
    report = gs.plan(world_size=8, local_world_size=2, **BUCKETS)
    assert (report["compute_ms"], report["bucket_bytes"]) == (20, [1e6, 4e6])
    assert len(report["assumed"]) == 1
    plain = [
        row
        for row in report["rows"]
        if (row["exchange"], row["codec"]) == ("gossip", "fp32")
        and row["topology"] in gs.topology_names()
    ]
    assert {"ring", "one-peer-exp"} <= {row["topology"] for row in plain}
    for row in plain:
        topology = gs.topology(row["topology"], 8, node_size=2)
        assert row["rounds"] == topology.rounds_to(1e-3)


def test_a_plan_for_slow_links_chooses_period_and_codec():
    report = gs.plan(world_size=4, between_gbit=0.001, **BUCKETS)
    best = report["rows"][0]
    assert best["fits"]
    assert best["every"] > 1
    assert best["yaml"] == report["yaml"]
    assert best["options"] == report["options"]
    assert report["options"]["algorithm"]["every"] == best["every"]


def test_the_advice_of_a_plan_trains():
    # Slow links lead to outer, faster ones to other ways; two regions to their own nodes.
    speed = {"latency_s": 1e-3, "bandwidth_bytes_per_s": 1e9}
    across = {"between": ["a", "b"], "latency_s": 0.1, "bandwidth_bytes_per_s": 1e6}
    regions = {
        "between": speed,
        "regions": [{"name": "a", "nodes": 2}, {"name": "b", "nodes": 2}],
        "across": [across],
    }
    plans = [
        gs.plan(world_size=4, between_gbit=0.01, **BUCKETS),
        gs.plan(world_size=4, between_gbit=10, **BUCKETS),
        gs.plan(world_size=4, links=regions, **BUCKETS),
    ]
    advices = [plan["options"] for plan in plans]
    advices += [
        next(row["options"] for row in plans[2]["rows"] if "by region" in row["topology"]),
        next(row["options"] for row in plans[0]["rows"] if row["exchange"] == "outer in pairs"),
        {"algorithm": "gossip", "buckets": {"size_mb": "auto"}},
    ]
    assert advices[0]["algorithm"]["name"] == "outer"
    assert "local_size" in advices[3]["comm"]

    def work():
        for advice in advices:
            net = torch.nn.Linear(4, 2)
            # A topology that the algorithm does not use has no effect, as in the program.
            for topology in (None,) if "topology" in advice else (None, "ring"):
                model = gs.DecentralizedDataParallel(net, sgd, topology, options=advice)
                for _ in range(2):
                    model(torch.ones(3, 4)).sum().backward()
                model.finish()

    gs.run_threads(4, work)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def test_sections_of_the_program_are_checked():
    def refuses(text, **options):
        with pytest.raises(gs.ConfigError, match=text):
            gs.DecentralizedDataParallel(torch.nn.Linear(4, 2), sgd, **options)

    def work():
        refuses("codec: is another one", codec="int8", options={"comm": {"codec": "bf16"}})
        refuses("local_size: 3 does not divide", options={"comm": {"local_size": 3}})
        refuses("size_mb", options={"buckets": {"size_mb": -1}})
        refuses("timeout", options={"comm": {"timeout": 3}})

    gs.run_threads(2, work)


def test_the_computing_time_of_a_model_is_measured_and_leaves_it_as_it_was():
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout())
    net[0].weight.grad = torch.ones(8, 8)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    random = torch.random.get_rng_state()
    figures = gs.measure_compute(net, torch.ones(4, 8), steps=3)
    assert figures["compute_ms"] > 0
    assert 0 < figures["backward_share"] <= 1
    assert figures["model_bytes"] == 4 * (8 * 8 + 8 + 8 + 8)
    assert torch.equal(torch.random.get_rng_state(), random)
    assert torch.equal(net[0].weight.grad, torch.ones(8, 8))
    assert net[1].weight.grad is None
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])
    pair = (torch.ones(4, 8), torch.zeros(4, 8))
    more = gs.measure_compute(net, pair, torch.nn.MSELoss(), steps=1)
    assert gs.plan(world_size=4, between_gbit=1, **more)["compute_ms"] == more["compute_ms"]


def test_what_cannot_be_measured_is_refused():
    frozen = torch.nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(gs.ConfigError, match="no parameter that requires a gradient"):
        gs.measure_compute(frozen, torch.ones(1, 2))
    with pytest.raises(gs.ConfigError, match="out of range"):
        gs.measure_compute(torch.nn.Linear(2, 2), torch.ones(1, 2), steps=0)

    def work():
        model = gs.DecentralizedDataParallel(torch.nn.Linear(2, 2), sgd)
        with pytest.raises(gs.ConfigError, match="wrapped already"):
            gs.measure_compute(model, torch.ones(1, 2))

    gs.run_threads(1, work)


def test_a_plan_takes_links_and_algorithms():
    speed = {"latency_s": 0, "bandwidth_bytes_per_s": 1e9}
    report = gs.plan(
        world_size=2,
        links={"between": speed},
        between_gbit=4,
        algorithm=["relay", {"name": "late_average", "every": 4}],
        **BUCKETS,
    )
    assert report["assumed"] == []
    assert report["links"]["between"]["bandwidth_bytes_per_s"] == 5e8
    assert "late_average {every: 4}" in [row["exchange"] for row in report["rows"]]


def test_wrong_keys_are_refused():
    def refuses(text, function, **keys):
        with pytest.raises(gs.ConfigError, match=text):
            function(**keys)

    refuses("world_size: 0 is out of range, allowed: ", gs.simulate, world_size=0)
    refuses("topolgy: .*did you mean topology", gs.simulate, world_size=4, topolgy="ring")
    refuses("threads: -1 is out of range, allowed: from 0", gs.simulate, world_size=4, threads=-1)
    refuses("model_bytes: is missing, allowed: ", gs.plan, world_size=4)
    refuses("budget: -1 is out of range", gs.plan, world_size=4, budget=-1, **BUCKETS)
    refuses("no_such.json", gs.plan, world_size=4, links="no_such.json", **BUCKETS)
    refuses(
        "algorithm: is .*, allowed: a list", gs.plan, world_size=4, algorithm="relay", **BUCKETS
    )


def test_the_notebook_of_topologies_runs():
    path = ROOT / "examples" / "python" / "topologies.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    names = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec("".join(cell["source"]), names)
    assert names["distances"]["Hops"][-1] < names["distances"]["ring"][-1]


def test_the_document_of_topologies_simulation_and_plans_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "guide" / "python.md").read_text(encoding="utf-8")
    section = text.split("\n## Topologies, simulation, plans\n")[1].split("\n## ")[0]
    names = {}
    for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        exec(block, names)
    assert (tmp_path / "ring.svg").exists()
    assert names["best"] in [row["yaml"] for row in names["report"]["rows"]]
