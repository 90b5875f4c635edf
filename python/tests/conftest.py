"""Models and data that the tests share.

GOSSAMER_TEST_DEVICE=cuda puts them on a GPU. Tests of several ranks that are threads are then left
out, because such ranks cannot share a GPU.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

DEVICE_TYPE = os.environ.get("GOSSAMER_TEST_DEVICE", "cpu")
if DEVICE_TYPE == "cpu":
    # Before PyTorch looks: decent-dp's wrapper moves models to a GPU by itself.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch

import gossamer as gs
from gossamer.compat.decent_dp.topo import Edge, Topology, TopologyReg

PROJECT = pathlib.Path(__file__).parents[2]
# What the project does not hold, as CONTRIBUTING.md says.
SHARED = pathlib.Path(os.environ.get("GOSSAMER_SHARED", PROJECT.parent / "shared"))
DEVICE = torch.device(DEVICE_TYPE)


def make_mlp() -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    # Ranks that are threads share PyTorch's own generator.
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=generator))
    return model.to(DEVICE)


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(16, 8, generator=generator).to(DEVICE)
    return x, 2 * x[:, :3] + 1


def loss_of(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    x, y = batch(rank, step)
    return torch.nn.functional.mse_loss(model(x), y)


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().cpu().to(torch.float64).flatten() for p in model.parameters()])


def digest(value: object) -> str:
    """Return a short text for a value; long lines of several ranks would mix in one pipe."""
    return hashlib.sha256(repr(value).encode()).hexdigest()


class Death(Exception):
    """Ends a rank."""


def survivors(num_ranks: int, work: Callable[[], Any]) -> list[Any]:
    """Return the results of the ranks that have not died."""
    return [found for found in gs.run_threads(num_ranks, work, survive=True) if found is not None]


def free_port() -> int:
    """Return a port of this host that no process has at this moment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def environment() -> dict[str, str]:
    """Return variables with which processes find the tests' modules, and print whole lines."""
    paths = [str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    # A line that is printed without a buffer would be two writes, and lines of ranks would mix.
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": ""}


def rank() -> int:
    return gs.current_session().rank


def alone(work: Callable[[], Any]) -> Any:
    """Run `work` in a world of one rank."""
    return gs.run_threads(1, work)[0]


# What the programs of several processes do when they have met; `fault` befalls rank 1. The second
# imports no PyTorch, which takes a process seconds.
TRAINING = """
torch.manual_seed(rank)
model = torch.nn.Linear(8, 3)
wrapper = gs.DecentralizedDataParallel(model, lambda ps: torch.optim.AdamW(ps), "ring")
for step in range(50):
    if rank == 1 and step == 20:
        {fault}
    wrapper(torch.ones(4, 8)).square().mean().backward()
"""
SUMS = """
session = gs.current_session()
for step in range(50):
    if rank == 1 and step == 20:
        {fault}
    total = session.sum([rank + step])
"""

MPIRUN = shutil.which("mpirun")
needs_mpi = pytest.mark.skipif(
    MPIRUN is None or "mpi" not in gs._core.backends(), reason="no MPI here"
)


def run_python(
    arguments: list[str], num_processes: int = 1, limit_s: float = 180
) -> subprocess.CompletedProcess[str]:
    """Run Python alone, or as several processes under mpirun, for at most `limit_s` seconds."""
    launcher = [MPIRUN, "--oversubscribe", "-n", str(num_processes)] if num_processes > 1 else []
    environment = os.environ | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    # A line that is printed would be two writes, and lines of several ranks would mix.
    environment.pop("PYTHONUNBUFFERED", None)
    return subprocess.run(
        [*launcher, sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
        env=environment,
    )


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_threads_that_share_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cpu":
        return

    def run(num_ranks: int, *args: Any, **kwargs: Any) -> list[Any]:
        if num_ranks > 1:
            pytest.skip("ranks that are threads cannot share a GPU")
        return run_threads(num_ranks, *args, **kwargs)

    run_threads = gs.run_threads
    monkeypatch.setattr(gs, "run_threads", run)


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TopologyReg, "registry", dict(TopologyReg.registry))


def register(name: str, steps: Sequence[Sequence[tuple[list[int], float]]]) -> type[Topology]:
    """Register a topology with these steps, lists of pairs (ranks, weight)."""

    @TopologyReg.register(name)
    class Given(Topology):
        def _get_topo_edges(self) -> list[list[Edge]]:
            return [[Edge(list(ranks), weight) for ranks, weight in edges] for edges in steps]

    return Given
