"""Topologies: figures against numpy, pictures, and topologies of a user's own."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from conftest import flat, loss_of, make_mlp, rank
from test_optimizers import OPTIMIZERS

import gossamer as gs

ADAMW = OPTIMIZERS["adamw"]
SVG = "{http://www.w3.org/2000/svg}"


class Ring(gs.OwnTopology):
    """Of an even number of ranks."""

    def rounds(self, world):
        n = world.size
        return [[((i, (i + 1) % n), 0.5) for i in range(first, n, 2)] for first in (0, 1)]


class Circle(gs.OwnTopology):
    """Every rank keeps a half and gives the other half to the next one."""

    directed = True

    def rounds(self, world):
        return [[(i, (i + 1) % world.size, 0.5) for i in range(world.size)]]


class Given(gs.OwnTopology):
    """The rounds that it was made with."""

    def __init__(self, *rounds):
        self.given = rounds

    def rounds(self, world):
        return self.given


def train(topology, then=None, num_steps=6):
    model = make_mlp()
    wrapper = gs.DecentralizedDataParallel(model, ADAMW, topology)
    for step in range(num_steps):
        if step == num_steps // 2 and then is not None:
            wrapper.switch_to(then)
        loss_of(wrapper, rank(), step).backward()
    wrapper.finish()
    return flat(model).clone()


def period_of(topology):
    product = np.eye(topology.world_size)
    for k in range(topology.period):
        product = topology.matrix(k) @ product
    return product


def test_topologies_have_the_figures_of_their_matrices():
    for name, n in [("ring", 6), ("one-peer-exp", 8), ("static-exp", 6), ("base-k", 12)]:
        topology = gs.topology(name, n)
        product = np.eye(n)
        for k in range(topology.period or 1):
            matrix = topology.matrix(k)
            assert np.allclose(matrix.sum(0), 1)
            product = matrix @ product
        if name in ("one-peer-exp", "base-k"):
            assert np.allclose(product, 1 / n)
    assert gs.topology("one-peer-exp", 8).rounds_to() == 3
    with pytest.raises(gs.ConfigError, match="powers of two"):
        gs.topology("one-peer-exp", 6)


@pytest.mark.parametrize("given", ["ring", "static-ring", "base-k", "hierarchical", Ring()])
def test_the_spectrum_is_that_of_the_matrices(given):
    n = 12
    topology = gs.topology(given, n, node_size=3)
    product = period_of(topology)
    radius = np.abs(np.linalg.eigvals(product - 1 / n)).max()
    spectrum = topology.spectrum()
    assert spectrum["spectral_gap"] == pytest.approx(1 - radius, abs=1e-7)
    distance, count = 1.0, 0
    mixed = np.eye(n)
    while distance > 1e-3:
        mixed = topology.matrix(count) @ mixed
        distance = np.linalg.norm(mixed - 1 / n, 2)
        count += 1
    assert spectrum["rounds_to_1e-3"] == count
    assert not spectrum["rounds_to_1e-3_estimated"]
    if radius > 1e-3:
        rate = spectrum["consensus_rate"]
        assert rate == pytest.approx(radius ** (1 / topology.period), abs=1e-7)
        assert spectrum["exact_after"] is None
    else:
        exact = spectrum["exact_after"]
        mixed = np.linalg.multi_dot([topology.matrix(k) for k in range(exact)][::-1])
        assert np.allclose(mixed, 1 / n, atol=1e-12)


def test_pictures_have_the_ranks_and_edges(tmp_path):
    def count(plot, kind):
        root = ElementTree.fromstring(plot.svg)
        return sum(element.get("class") == kind for element in root.iter())

    ring = gs.topology(Ring(), 8).plot()
    assert [count(ring, kind) for kind in ("round", "rank", "edge", "arc")] == [2, 16, 8, 0]
    one = gs.topology("base-k", 6, k=2).plot(0)
    assert [count(one, kind) for kind in ("round", "rank", "edge", "arc")] == [1, 6, 2, 0]
    circle = gs.topology(Circle(), 5).plot()
    assert [count(circle, kind) for kind in ("round", "rank", "edge", "arc")] == [1, 5, 0, 5]
    # Two nodes of two ranks are one group of four.
    nodes = gs.topology("hierarchical", 4, node_size=2).plot(0)
    assert [count(nodes, kind) for kind in ("round", "rank", "edge", "arc")] == [1, 4, 1, 0]
    root = ElementTree.fromstring(ring._repr_svg_())
    assert "Ring, 8 ranks, period 2" in [text.text for text in root.iter(f"{SVG}text")]
    ring.save(tmp_path / "ring.svg")
    assert (tmp_path / "ring.svg").read_text() == str(ring)
    with pytest.raises(gs.ConfigError, match="up to 512"):
        gs.topology("ring", 513).plot()


def test_an_own_ring_is_the_ring():
    for n in (2, 8):
        own, built_in = gs.topology(Ring(), n), gs.topology("ring", n)
        assert (own.name, own.period) == ("Ring", 2)
        assert own.rounds_to() == built_in.rounds_to()
        for k in range(2):
            assert np.array_equal(own.matrix(k), built_in.matrix(k))


@pytest.mark.parametrize(
    ("own", "built_in"),
    [
        ((Ring(), Given([((0, 1, 2, 3), 0.25)])), ("ring", "complete")),
        (({"alternate": [Ring(), "complete"]},), ({"alternate": ["ring", "complete"]},)),
    ],
)
def test_an_own_topology_trains_as_the_built_in_one(own, built_in):
    ends = [gs.run_threads(4, lambda given=given: train(*given)) for given in (own, built_in)]
    for a, b in zip(*ends, strict=True):
        assert torch.equal(a, b)


def test_own_arcs_mix_as_their_matrix_says():
    topology = gs.topology(Circle(), 5)
    expected = 0.5 * (np.eye(5) + np.roll(np.eye(5), 1, axis=0))
    assert np.array_equal(topology.matrix(), expected)
    ends = gs.run_threads(5, lambda: train(Circle()))
    assert all(torch.isfinite(end).all() for end in ends)
    assert not torch.equal(ends[0], ends[1])


PAIR, OTHERS = ((0, 1), 0.5), ((2, 3), 0.5)


@pytest.mark.parametrize(
    ("topology", "text"),
    [
        (Given([PAIR, ((1, 2), 0.5)]), "Given: round 0: Rank 1 stands twice in one round"),
        (Given([((0, 1, 2, 3), 0.25)], [((0, 4), 0.5)]), "Given: round 1: .*4"),
        (Given([PAIR, OTHERS]), "Given: Nothing that rank 0 knows ever reaches rank 2"),
        (Given([((0, 1, 2, 3), 1.5)]), "Given: round 0: .*weight"),
        (Given([((0, 1), float("nan"))]), "weight: is no weight"),
        (Given([(0, 1, 0.5), (1, 2, 0.5), (2, 3, 0.5), (3, 0, 0.5)]), "Given: round 0: "),
        (Given(), "rounds: is empty, allowed: one round or more"),
        (Given([(0, 1)]), r"Given: round 0: \(0, 1\) is no edge, allowed: \(ranks, weight\)"),
        (Given([((0, 0.5), 0.5)]), "is no edge"),
        (Given(7), "has returned .*, allowed: a list of edges for each round"),
        (Ring, "is no option, allowed: .*instances of OwnTopology"),
        ({"name": "OwnTopology"}, "class: is missing"),
    ],
)
def test_wrong_rounds_are_refused(topology, text):
    with pytest.raises(gs.ConfigError, match=text):
        gs.topology(topology, 4)


def test_options_stand_beside_names():
    with pytest.raises(gs.ConfigError, match="options stand beside"):
        gs.topology(Ring(), 4, k=2)
    assert "OwnTopology" not in gs.topology_names()


def test_ranks_that_differ_are_refused():
    pairs = [((0, 1), 0.5), ((2, 3), 0.5)], [((1, 2), 0.5), ((0, 3), 0.5)]
    other = [pairs[0], [((1, 2), 0.25), ((0, 3), 0.25)]]
    seen = []

    def begin():
        try:
            train(Given(*(pairs if rank() < 2 else other)))
        except gs.ConfigError as error:
            seen.append(str(error))
            raise

    with pytest.raises(gs.ConfigError, match="the ranks differ in their options: rank 0 has"):
        gs.run_threads(4, begin)
    assert len(seen) == 4
    assert all("rank 2 has" in text and "0.25" in text for text in seen)

    def switch():
        train("ring", then=Given(*(pairs if rank() < 2 else other)))

    with pytest.raises(gs.ConfigError, match="the ranks differ in what they switch to"):
        gs.run_threads(4, switch)


def test_threads_of_the_engine_may_differ():
    def work():
        gs.DecentralizedDataParallel(
            make_mlp(), ADAMW, Ring(), options={"threads": 1 + rank()}
        ).finish()

    gs.run_threads(2, work)
