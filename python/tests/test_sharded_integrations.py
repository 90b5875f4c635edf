"""Models that other libraries' loops shard inside a node, and that gossip between nodes.

The ranks are processes, which run the loops of all libraries one after the other.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from conftest import environment
from test_sharded import HERE, VERSION, once

pytestmark = pytest.mark.skipif(VERSION < (2, 6), reason="fully_shard() is private there")

LIBRARIES = ("accelerate", "transformers", "lightning")


def run(folder):
    program = str(HERE / "sharded_integrations_cases.py")
    done = subprocess.run(
        [sys.executable, program, str(folder)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        env=environment() | {"OMP_NUM_THREADS": "1"},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    for library in LIBRARIES:
        pytest.importorskip(library)
    own = tmp_path_factory.getbasetemp()
    common = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    files = tmp_path_factory.mktemp("sharded_integrations")
    code, out, err = once(common, "integrations", lambda: run(files))
    assert code == 0, out + err
    lines = re.findall(r"^CASE (.*)$", out, re.MULTILINE)
    return dict(json.loads(line) for line in lines) | {"printed": out}


@pytest.mark.parametrize("library", LIBRARIES)
def test_ranks_of_a_node_have_one_model_and_the_nodes_differ(found, library):
    own = found[library]["own"]
    assert own[0] == own[1]
    assert own[2] == own[3]
    assert own[0] != own[2]


@pytest.mark.parametrize("library", LIBRARIES)
def test_all_ranks_evaluate_the_mean(found, library):
    evaluated = found[library]["evaluated"]
    assert evaluated == [evaluated[0]] * 4
    assert len(set(evaluated[0])) > 1


@pytest.mark.parametrize("library", ["transformers", "lightning"])
def test_the_mean_is_saved_and_stays(found, library):
    end = found[library]["end"]
    assert end == [end[0]] * 4
    assert found[library]["saved"] == pytest.approx([end[0]] * len(found[library]["saved"]))


@pytest.mark.parametrize("library", ["accelerate", "lightning"])
def test_each_rank_has_its_own_part_of_the_data(found, library):
    seen = found[library]["seen"]
    assert sorted(i for own in seen for i in own) == sorted(i % 11 for i in range(16))


@pytest.mark.parametrize(
    ("library", "steps"), [("accelerate", 3), ("transformers", 4), ("lightning", 4)]
)
def test_steps_are_those_of_the_loop(found, library, steps):
    assert found[library]["steps"] == [steps, steps]


@pytest.mark.parametrize("library", ["transformers", "lightning"])
def test_a_checkpoint_is_gone_on_from(found, library):
    assert found[library]["again"] == 2


def test_accelerate_clips_by_the_norm_of_the_node(found):
    norms = found["accelerate"]["clipped"]
    assert norms[0] == norms[1]
    assert norms[2] == norms[3]
    assert norms[0] != norms[2]


def test_another_parallelism_config_is_refused(found):
    assert "parallelism_config is ParallelismConfig(" in found["accelerate"]["refused"]
    assert "allowed: NodeParallelism(dp_replicate_size=NODES" in found["accelerate"]["refused"]


def test_nodes_that_do_not_divide_the_ranks_are_refused(found):
    expected = "nodes is 3 and tensor_parallel_size is 1, allowed: numbers whose product divides"
    assert expected in found["lightning"]["refused"]


def test_the_examples_learn(found):
    accuracies = re.findall(r"accuracy of the mean (\d\.\d+)", found["printed"])
    (loss,) = re.findall(r"^loss of the mean (\d\.\d+)", found["printed"], re.MULTILINE)
    assert [float(accuracy) > 0.3 for accuracy in accuracies] == [True, True]
    # Of 256 characters it would be 5.5 without training.
    assert float(loss) < 4.5
