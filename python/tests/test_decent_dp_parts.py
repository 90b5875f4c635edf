"""decent-dp's topologies and optimizers, without the wrapper."""

from __future__ import annotations

import functools
import json
import os

import pytest
import torch
from conftest import SHARED, flat, loss_of, make_mlp, rank, register

import gossamer as gs
from gossamer.compat.decent_dp import optim, utils
from gossamer.compat.decent_dp.topo import TopologyReg
from gossamer.optimizers import rules_of

EDGES = SHARED / "golden" / "topology_edges.json"


@pytest.mark.skipif(not EDGES.exists(), reason="no recorded edges here")
@pytest.mark.parametrize("n", range(2, 17))
def test_topologies_have_decent_dps_edges(n):
    given = json.loads(EDGES.read_text())[str(n)]

    def look():
        for title, expected in given.items():
            # With nodes of one rank decent-dp divides by zero.
            if "unusable" in expected:
                continue
            name, _, local = title.partition("/local=")
            kind = TopologyReg.registry[name]
            if "error" in expected:
                with pytest.raises(ValueError, match=r"ranks|nodes"):
                    kind(int(local or 1))
                continue
            topology = kind(int(local or 1))
            steps = [
                sorted(([edge.ranks, edge.weight] for edge in edges), key=lambda edge: edge[0])
                for edges in topology._get_topo_edges()
            ]
            assert steps == [
                sorted(([e["ranks"], e["weight"]] for e in edges), key=lambda edge: edge[0])
                for edges in expected["steps"]
            ]
            for step in (0, 1, expected["period"] + 1):
                edge = topology.get_edge(step)
                assert rank() in edge.ranks
                assert [edge.ranks, edge.weight] in steps[step % expected["period"]]

    gs.run_threads(n, look)


def test_wrong_topologies_are_refused():
    with pytest.raises(ValueError, match="topology ring: is registered already"):
        register("ring", [])
    with pytest.raises(ValueError, match="int is no subclass of Topology"):
        TopologyReg.register("mine")(int)
    pair, alone = ([0, 1], 0.5), [([0], 1.0), ([1], 1.0)]
    for name, steps, text in [
        ("none", [], "Given: has no steps, allowed: one step or more"),
        (
            "twice",
            [[pair, pair]],
            r"step 0 names the ranks \[0, 0, 1, 1\], allowed: each of 0 to 1",
        ),
        ("part", [[pair], [([0], 1.0)]], r"step 1 names the ranks \[0\], allowed"),
        ("weight", [[pair], [([0, 1], 1.5)]], "Given: round 1: .*weight.* is 1.5"),
        ("apart", [alone], "Given: Nothing that rank 0 knows ever reaches rank 1"),
    ]:
        with pytest.raises(ValueError, match=text):
            gs.run_threads(2, functools.partial(register(name, steps), 1))
    with pytest.raises(AssertionError, match="nodes of equal size"):
        gs.run_threads(3, functools.partial(TopologyReg.registry["complete"], 2))


@pytest.mark.parametrize("name", ["AccumAdam", "AccumAdamW"])
def test_optimizers_alone_are_decent_dps(name, monkeypatch):
    theirs = getattr(pytest.importorskip("decent_dp.optim"), name)
    # decent-dp 0.2.3 calls a method that PyTorch has renamed.
    monkeypatch.setattr(
        torch.optim.Optimizer, "_cuda_graph_capture_health_check", lambda self: None, raising=False
    )
    ends, states = [], []
    for kind in (theirs, getattr(optim, name)):
        model = make_mlp()
        optimizer = kind(model.parameters(), lr=0.01, weight_decay=0.1, accum_iter=3)
        for step in range(10):
            optimizer.zero_grad()
            loss_of(model, 0, step).backward()
            optimizer.step()
        ends.append(flat(model))
        states.append(optimizer.state_dict()["state"][0])
    assert (ends[0] - ends[1]).abs().max() < 5e-7
    assert states[0].keys() == states[1].keys()
    for key, value in states[0].items():
        assert torch.allclose(value, states[1][key], atol=1e-7), key


def test_the_engine_does_their_work():
    parameters = list(make_mlp().parameters())
    for kind, rule in [(optim.AccumAdam, "accum_adam"), (optim.AccumAdamW, "accum_adamw")]:
        (found,) = rules_of(kind(parameters, accum_iter=2))
        assert found.kind == rule
        assert rules_of(type("Mine", (kind,), {})(parameters)) is None


def test_functions_make_decent_dps_groups():
    theirs = pytest.importorskip("decent_dp.optim")
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    model.bn = torch.nn.BatchNorm1d(3)
    named = list(model.named_parameters())
    for name in ("adam", "adamw", "accum_adam", "accum_adamw"):
        own, other = (getattr(m, f"optim_fn_{name}")(named) for m in (optim, theirs))
        assert type(own).__name__ == type(other).__name__
        for a, b in zip(own.param_groups, other.param_groups, strict=True):
            assert [id(p) for p in a.pop("params")] == [id(p) for p in b.pop("params")]
            assert a == b


@pytest.mark.parametrize(
    ("visible", "count", "taken"),
    [
        (None, 4, "1"),
        (None, 1, None),
        ("4,6,7", 3, "6"),
        ("5", 1, "5"),
        ("GPU-a,GPU-b", 2, "GPU-b"),
    ],
)
@pytest.mark.parametrize("has_begun", [False, True])
def test_each_process_of_a_host_takes_a_gpu(monkeypatch, visible, count, taken, has_begun):
    current = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    # The driver has looked at the variable before it was changed, or not.
    seen = count if has_begun else 1
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", lambda: seen, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
    if visible is None:
        del os.environ["CUDA_VISIBLE_DEVICES"]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    utils._take_gpu(1)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == taken
    assert current == ([1 % count] if has_begun and count > 1 else [])
