"""decent-dp's hook before the mix, against decent-dp itself and against the sums written out."""

from __future__ import annotations

import importlib.util
import re
import textwrap

import numpy as np
import pytest
import torch
from conftest import rank, register, run_python

import gossamer as gs
from gossamer.compat.decent_dp.ddp import DecentralizedDataParallel

HOOKED = textwrap.dedent(
    """
    import sys
    import torch

    if sys.argv[1] == "decent-dp":
        from decent_dp.ddp import DecentralizedDataParallel
        from decent_dp.topo import Edge, Topology, TopologyReg
        from decent_dp.utils import initialize_dist
    else:
        from gossamer.compat.decent_dp.ddp import DecentralizedDataParallel
        from gossamer.compat.decent_dp.topo import Edge, Topology, TopologyReg
        from gossamer.compat.decent_dp.utils import initialize_dist

    class Hooked(torch.optim.SGD):
        # Follows the peers' sums, and writes to what is mixed.
        def pre_average_hook(self, edge, weight):
            for group in self.param_groups:
                for p in group["params"]:
                    state = self.state[p]
                    state.setdefault("heard", torch.zeros_like(p)).lerp_(p.comm_buffer - p, 0.5)
                    p.comm_buffer.add_(p, alpha=0.1 * (weight - 0.2))
                    p.mul_(0.99)

    @TopologyReg.register("pair")
    class Pair(Topology):
        def _get_topo_edges(self):
            return [[Edge(ranks=[0, 1], weight=0.7)]]

    rank, _ = initialize_dist()
    torch.manual_seed(rank)
    optimizers = []

    def optim_fn(named):
        optimizers.append(Hooked([p for _, p in named], lr=0.1, momentum=0.9))
        return optimizers[-1]

    module = torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.Linear(5, 3))
    model = DecentralizedDataParallel(
        module, optim_fn, topology="pair", bucket_size_in_mb=2e-4, param_as_bucket_view=False
    )
    model.set_adaptive_factor(0.6)
    for _ in range(6):
        x = torch.randn(16, 8)
        (model(x) - x[:, :3]).square().mean().backward()
    values = [p.detach().flatten() for p in module.parameters()]
    heard = [optimizer.state[p]["heard"].flatten()
             for optimizer in optimizers for group in optimizer.param_groups
             for p in group["params"] if optimizer.state.get(p)]
    # One write, because torchrun's processes do not buffer, and their lines would mix.
    sys.stdout.write(f"{rank} {torch.cat(values).tolist()} {torch.cat(heard).sum().item()}\\n")
    torch.distributed.barrier()
    """
)


@pytest.mark.skipif(importlib.util.find_spec("decent_dp") is None, reason="needs decent-dp")
def test_a_hook_before_the_mix_gives_what_decent_dp_gives(tmp_path):
    path = tmp_path / "hooked.py"
    path.write_text(HOOKED)

    def run(package):
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        done = run_python([*torchrun, str(path), package])
        assert done.returncode == 0, done.stderr
        lines = sorted(done.stdout.splitlines())
        assert len(lines) == 2, done.stdout
        return [np.array(re.findall(r"[-+.e0-9]+", line), dtype=float) for line in lines]

    for theirs, ours in zip(run("decent-dp"), run("gossamer"), strict=True):
        # The rank, the parameters, and the sum of what the hooks have heard.
        assert len(theirs) == 1 + 8 * 5 + 5 + 5 * 3 + 3 + 1
        assert np.abs(theirs - ours).max() < 2e-6


def test_a_hook_is_not_called_where_nothing_is_mixed():
    class Hooked(torch.optim.SGD):
        num_calls = 0

        def pre_average_hook(self, edge, weight):
            assert (edge.ranks, weight) == ([0, 1], 0.5)
            assert {id(p) for g in self.param_groups for p in g["params"]} == {id(self.p)}
            self.num_calls += 1

    def work():
        module = torch.nn.Linear(3, 1, bias=False)
        made = []

        def optim_fn(named):
            made.append(Hooked([p for _, p in named], lr=0.1))
            made[0].p = module.weight
            return made[0]

        model = DecentralizedDataParallel(module, optim_fn, topology="complete")
        with pytest.raises(gs.ConfigError, match="adaptive_factor: 0, allowed: above 0"):
            model.set_adaptive_factor(0)
        calls = []
        for step in range(7):
            if step == 2:
                model.global_avg(will_revert=False)
            if step == 4:
                model.global_avg()
            if step == 6:
                with torch.no_grad():
                    module.weight.fill_(float(rank()))
            model(torch.ones(3)).backward()
            calls.append(made[0].num_calls)
        return calls

    # As in decent-dp, the first step calls it with a rank's own parameters.
    assert gs.run_threads(2, work) == [[1, 2, 2, 3, 3, 4, 4]] * 2


def test_a_hook_gets_the_sums_after_a_step_that_is_left_out():
    class Hooked(torch.optim.SGD):
        def pre_average_hook(self, edge, weight):
            self.heard.append(self.p.comm_buffer.tolist()[0])

    def work():
        module = torch.nn.Linear(2, 1, bias=False)
        made = []

        def optim_fn(named):
            # Only the first step moves the ranks apart.
            made.append(Hooked([p for _, p in named], lr=0.1))
            made[0].p, made[0].heard = module.weight, []
            return made[0]

        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        model = DecentralizedDataParallel(module, optim_fn, topology="pair", scaler=scaler)
        for step in range(4):
            x = torch.full((2,), float("inf") if step == 1 else rank() + 1.0)
            scaler.scale(model(x)).backward()
            made[0].param_groups[0]["lr"] = 0.0
        return made[0].heard, module.weight.tolist()[0]

    register("pair", [[([0, 1], 0.7)]])
    (heard, own), (other, others) = gs.run_threads(2, work)
    assert len(heard) == len(other) == 3
    # Then the optimizer moves nothing, so mixing keeps the sum.
    total = 0.3 * (np.array(own) + np.array(others))
    assert np.allclose([heard[1:], other[1:]], total, atol=1e-6)
