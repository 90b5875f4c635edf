"""Several ranks, as threads of this process."""

from __future__ import annotations

import json
import time

import pytest
import torch
from conftest import alone, batch, flat, loss_of, make_mlp, rank
from test_optimizers import OPTIMIZERS

import gossamer as gs

ADAMW = OPTIMIZERS["adamw"]


def train(num_steps=10, topology=None, optim_fn=ADAMW, **options):
    model = make_mlp()
    with torch.no_grad():
        model[0].weight.add_(rank())  # rank 0's values count
    wrapper = gs.DecentralizedDataParallel(model, optim_fn, topology, **options)
    for step in range(num_steps):
        loss_of(wrapper, rank(), step).backward()
    with wrapper.global_average() as distance:
        mean = flat(model).clone()
    own = flat(model).clone()
    wrapper.finish()
    return own, mean, distance


@pytest.mark.parametrize("topology", ["ring", "complete", "one-peer-exp", {"name": "base-k"}])
def test_ranks_mix_and_agree_on_the_mean(topology):
    ends = gs.run_threads(4, lambda: train(topology=topology))
    owns = torch.stack([own for own, _, _ in ends])
    for own, mean, distance in ends:
        assert torch.allclose(mean, owns.mean(0), atol=1e-6)
        assert distance == pytest.approx((own - owns.mean(0)).norm().item(), rel=1e-4)
    assert not torch.equal(ends[0][0], ends[1][0])


def test_all_reduce_keeps_ranks_equal_also_in_python():
    for optim_fn in (ADAMW, lambda ps: torch.optim.RMSprop(ps, lr=0.01)):
        ends = gs.run_threads(
            3, lambda optim_fn=optim_fn: train(algorithm="allreduce", optim_fn=optim_fn)
        )
        assert torch.equal(ends[0][0], ends[1][0])
        assert torch.equal(ends[0][0], ends[2][0])


def test_an_optimizer_in_python_gives_what_the_engine_gives(tmp_path):
    class InPython(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    def end(kind, codec, shared_memory, topology="ring"):
        return gs.run_threads(
            4,
            lambda: train(
                topology=topology,
                optim_fn=lambda ps: kind(ps, lr=0.05, momentum=0.9),
                codec=codec,
                options={"shared_memory": shared_memory},
                num_steps=25,
            ),
        )

    for codec in ("fp32", "bf16", "int8"):
        for shared_memory in (True, False):
            engine = end(torch.optim.SGD, codec, shared_memory)
            python = end(InPython, codec, shared_memory)
            for a, b in zip(engine, python, strict=True):
                assert torch.allclose(a[0], b[0], atol=2e-6 if codec == "fp32" else 2e-2)
    # Ranks weigh differently here, and scale their learning rates.
    edges = {"directed": True, "edges": [[0, 1], [1, 2], [2, 3], [3, 0], [0, 2]]}
    path = tmp_path / "directed.json"
    path.write_text(json.dumps({"world_size": 4} | edges))
    directed = {"name": "from-file", "path": str(path)}
    engine = end(torch.optim.SGD, "fp32", True, directed)
    python = end(InPython, "fp32", True, directed)
    for a, b in zip(engine, python, strict=True):
        assert torch.allclose(a[0], b[0], atol=2e-6)


def test_the_mean_may_be_kept():
    def work():
        model = make_mlp()
        wrapper = gs.DecentralizedDataParallel(model, ADAMW, "ring")
        for step in range(5):
            loss_of(wrapper, rank(), step).backward()
        with wrapper.global_average(keep=True):
            pass
        kept = flat(model).clone()
        loss_of(wrapper, rank(), 5).backward()
        return kept, flat(model).clone()

    ends = gs.run_threads(3, work)
    assert torch.equal(ends[0][0], ends[1][0])
    assert not torch.equal(ends[0][1], ends[1][1])


def test_the_mean_takes_all_buffers_at_once(monkeypatch):
    counts = {}
    average = gs.Session.average

    def counting(session, values):
        counts[session.rank] = counts.get(session.rank, 0) + 1
        average(session, values)

    monkeypatch.setattr(gs.Session, "average", counting)

    def work():
        module = torch.nn.Sequential(*[torch.nn.BatchNorm1d(8) for _ in range(5)])
        wrapper = gs.DecentralizedDataParallel(module, ADAMW, "ring")
        module(batch(rank(), 0)[0]).sum().backward()
        with torch.no_grad():
            for buffer in module.buffers():
                buffer.fill_(rank())
        with wrapper.global_average():
            return [b.clone() for b in module.buffers() if b.is_floating_point()]

    for means in gs.run_threads(3, work):
        assert all(torch.equal(mean, torch.ones(8)) for mean in means)
    assert counts == {0: 1, 1: 1, 2: 1}


def test_no_step_inside_a_scope():
    def work():
        wrapper = gs.DecentralizedDataParallel(make_mlp(), ADAMW, "ring")
        loss_of(wrapper, rank(), 0).backward()
        with wrapper.global_average(), pytest.raises(RuntimeError, match="inside the scope"):
            loss_of(wrapper, rank(), 1).backward()

    gs.run_threads(2, work)


def test_ranks_switch_and_try_sizes():
    def work():
        torch.manual_seed(1)
        model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)])
        wrapper = gs.DecentralizedDataParallel(model, ADAMW, "ring", bucket_size_in_mb=0)
        x = torch.randn(2, 512)
        for step in range(90):
            model(x).square().mean().backward()
            if step == 70:
                wrapper.switch_to("complete", average=True)
                ends = flat(model).clone()
        return ends

    ends = gs.run_threads(2, work)
    assert torch.equal(ends[0], ends[1])


def test_models_that_differ_are_refused():
    def work():
        gs.DecentralizedDataParallel(torch.nn.Linear(3, 1 + rank()), ADAMW, "ring")

    with pytest.raises(gs.ConfigError, match="the ranks differ in their models"):
        gs.run_threads(2, work)


def test_an_error_of_one_rank_is_the_error():
    def work():
        wrapper = gs.DecentralizedDataParallel(make_mlp(), ADAMW, "ring")
        for step in range(10):
            if rank() == 1 and step == 4:
                raise KeyError("a bad batch")
            loss_of(wrapper, rank(), step).backward()

    begin = time.monotonic()
    with pytest.raises(KeyError, match="a bad batch"):
        gs.run_threads(3, work, timeout_s=60)
    assert time.monotonic() - begin < 30


def test_the_others_end_with_the_code_of_the_rank_that_failed():
    codes = []

    def work():
        wrapper = gs.DecentralizedDataParallel(make_mlp(), ADAMW, "ring")
        for step in range(10):
            if rank() == 1 and step == 4:
                raise gs.DataError("a bad file")
            try:
                loss_of(wrapper, rank(), step).backward()
            except gs.CommError as error:
                codes.append(error.exit_code)
                raise

    with pytest.raises(gs.DataError, match="a bad file"):
        gs.run_threads(3, work, timeout_s=60)
    assert codes == [3, 3]


def test_ranks_that_make_different_numbers_of_steps_are_told():
    def work():
        # A message is under way when the work has ended.
        wrapper = gs.DecentralizedDataParallel(
            make_mlp(), ADAMW, "ring", options={"shared_memory": False}
        )
        for step in range(5 + rank()):
            loss_of(wrapper, rank(), step).backward()

    with pytest.raises(gs.CommError, match="that rank has left the run"):
        gs.run_threads(2, work, timeout_s=60)


def test_a_wrapper_that_outlives_its_session_says_so():
    def work():
        wrapper = gs.DecentralizedDataParallel(make_mlp(), ADAMW, "ring")
        loss_of(wrapper, rank(), 0).backward()
        return wrapper

    for wrapper in gs.run_threads(2, work):
        assert wrapper.metrics()["steps"] == 1
        with pytest.raises(RuntimeError, match="has been closed"):
            wrapper.drain()
        with pytest.raises(RuntimeError, match="after finish"):
            wrapper.finish_step()


def test_asynchronous_ranks_average_and_load_while_others_still_make_steps(tmp_path):
    def work():
        module = torch.nn.Sequential(torch.nn.BatchNorm1d(8), make_mlp())
        algorithm = {"name": "async_gossip", "max_staleness": 1}
        wrapper = gs.DecentralizedDataParallel(module, ADAMW, "ring", algorithm=algorithm)

        def train():
            # Rank 0 then waits in its step for rank 1, which has made its last one.
            for step in range(20 - 10 * rank()):
                loss_of(wrapper, rank(), step).backward()

        train()
        with wrapper.global_average():
            averaged = flat(module)
        wrapper.save(tmp_path)
        saved = flat(module)
        train()
        wrapper.load(tmp_path)
        assert torch.equal(flat(module), saved)
        wrapper.finish()
        return averaged

    first, second = gs.run_threads(2, work, timeout_s=60)
    assert torch.equal(first, second)


def test_asynchronous_ranks_end_together_without_a_word():
    def work():
        wrapper = gs.DecentralizedDataParallel(make_mlp(), ADAMW, "ring", algorithm="async_gossip")
        for step in range(10 + 5 * rank()):
            loss_of(wrapper, rank(), step).backward()

    begin = time.monotonic()
    gs.run_threads(2, work, timeout_s=60)
    assert time.monotonic() - begin < 30


def test_parts_count_their_own_ranks():
    def work():
        session = gs.current_session()
        part = session.part(session.rank % 2)
        return part.rank, part.world_size, part.sum([float(session.rank)])

    even, odd = 3, 2
    assert gs.run_threads(5, work) == [
        (0, even, [6.0]),
        (0, odd, [4.0]),
        (1, even, [6.0]),
        (1, odd, [4.0]),
        (2, even, [6.0]),
    ]


def test_a_part_ends_with_the_whole():
    def work():
        session = gs.current_session()
        part = session.part(0)
        part.close()
        return session, part, part.is_open, part.whole is session, session.whole is session

    for session, part, was_open, knows_whole, is_whole in gs.run_threads(2, work):
        assert (was_open, knows_whole, is_whole) == (True, True, True)
        assert (session.is_open, part.is_open) == (False, False)
        with pytest.raises(RuntimeError, match="this session has been closed"):
            part.barrier()


def test_a_failure_ends_the_waits_in_other_parts():
    def work():
        session = gs.current_session()
        part = session.part(session.rank // 2)
        if session.rank == 3:
            raise ValueError("a bad batch")
        part.barrier()
        session.barrier()

    with pytest.raises(ValueError, match="a bad batch"):
        gs.run_threads(4, work)


def test_a_wrapper_in_a_part_is_closed_with_the_whole():
    def work():
        session = gs.current_session()
        part = session.part(session.rank % 2)
        torch.manual_seed(session.rank)
        model = gs.DecentralizedDataParallel(
            torch.nn.Linear(2, 1), lambda ps: torch.optim.SGD(ps, lr=0.1), "ring", session=part
        )
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
        with model.global_average():
            return model, model.module.weight.detach().clone()

    results = gs.run_threads(4, work)
    assert torch.equal(results[0][1], results[2][1])
    assert not torch.equal(results[0][1], results[1][1])
    for model, _ in results:
        assert model.metrics()["steps"] == 3
        with pytest.raises(RuntimeError, match="after finish"):
            model.finish_step()


def test_colors_of_parts_are_not_negative():
    with pytest.raises(gs.ConfigError, match="color is -1, allowed: 0 or more"):
        alone(lambda: gs.current_session().part(-1))


def test_a_session_that_survives_has_no_parts():
    def work():
        with pytest.raises(gs.ConfigError, match="survive=True, and a part does not know"):
            gs.current_session().part(0)

    gs.run_threads(2, work, survive=True)
