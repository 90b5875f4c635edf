"""Runs that go on when ranks die, as processes that are killed.

GOSSAMER_SEEDS: how many random moments are tried; 3 by default, 20 and more for the long form.
GOSSAMER_TEST_DEVICE: cuda puts the models on a GPU, which the ranks share.
"""

import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

import cli_case
from cli_case import CliCase, processes_of
from etcd import Etcd

K_SEEDS = int(os.environ.get("GOSSAMER_SEEDS", "3"))

K_DEVICE = os.environ.get("GOSSAMER_TEST_DEVICE", "cpu")
K_YAML = f"""\
run: {{seed: 3, steps: 120, output_dir: out, checkpoint_every: 20}}
model: {{name: mlp, hidden: 16}}
data: {{name: glyphs, train_size: 2048, val_size: 512, batch_size: 16}}
fault: {{mode: survive, silence_s: 2}}
log: {{every: 5, consensus_every: 10, eval_every: 15, report: false}}
device: {{name: {K_DEVICE}, share: true}}
"""


class SurvivalCase(CliCase):
    def setUp(self):
        super().setUp()
        self.write("run.yaml", K_YAML)

    def train(self, ranks, *arguments, folder="out"):
        """A run of processes, once it has made a few steps."""
        return self.start([self.program, "train", "run.yaml", "--processes", str(ranks),
                           f"run.output_dir={folder}", *arguments],
                          until=lambda: self.status(folder).get("step", 0) >= 5)

    def pid_of(self, rank):
        found = [pid for pid, one in processes_of(self.folder.resolve()).items() if one == rank]
        self.assertEqual(len(found), 1, f"rank {rank} runs once")
        return found[0]

    def train_at(self, place, ranks):
        """Processes that meet there, in the order of their ranks, once they have made a few steps."""
        os.environ["GOSSAMER_SECRET"] = self.gossamer("secret").stdout.strip()
        jobs = [self.start([self.program, "train", "run.yaml", "run.steps=100000", "--rendezvous",
                            place, "--world-size", str(ranks), "--rank", str(rank)],
                           until=lambda: True) for rank in range(ranks)]
        self.wait_until(lambda: self.status().get("step", 0) >= 5)
        return jobs

    def end_of(self, job):
        """Exit code and output of a run that ends by itself."""
        errors = job.stderr.read()
        return job.wait(), errors

    def expect_whole(self, members, steps, folder="out"):
        """The run has come to its end with these members, and its records follow one another."""
        status = self.status(folder)
        self.assertEqual((status["state"], status["step"]), ("done", steps))
        self.assertEqual(status["members"], members)
        records = self.records(folder)
        final = [record for record in records if record["kind"] == "final"]
        self.assertEqual([record["world_size"] for record in final], [len(members)])
        self.assertEqual(len(final[0]["parameter_checksums"]), len(members))
        recorded = [record["step"] for record in records if record["kind"] == "step"]
        self.assertEqual(recorded, sorted(set(recorded)), "each step is recorded once")
        self.assertEqual(recorded[-1], steps)
        self.assertTrue((self.folder / folder / "model.safetensors").exists())
        evaluated = [record["step"] for record in records if record["kind"] == "eval"]
        self.assertEqual(evaluated, sorted(set(evaluated)), "each evaluation is recorded once")
        return records

    def expect_joins(self, place):
        """4 - 2: two ranks train, two join, the first two are killed, and a stranger is refused."""
        os.environ["GOSSAMER_SECRET"] = self.gossamer("secret").stdout.strip()
        command = [self.program, "train", "run.yaml", "run.steps=100000"]
        first = [self.start([*command, "--rendezvous", place, "--world-size", "2", "--rank",
                             str(rank)], until=lambda: True) for rank in (1, 0)]
        self.wait_until(lambda: self.status().get("step", 0) >= 5)
        later = self.start([*command, "--join", place],
                           until=lambda: self.status().get("members") == [0, 1, 2])
        # The one that has joined may be the last that knows the run's beginning.
        other = self.start([*command, "--join", place],
                           until=lambda: self.status().get("members") == [0, 1, 2, 3])
        for job in first[::-1]:
            before = self.status()["members"]
            job.kill()
            self.wait_until(lambda before=before: len(self.status()["members"]) < len(before)
                            or other.poll() is not None)
            if len(before) == 4:
                self.assertEqual(self.status()["members"], [1, 2, 3])
        self.assertEqual(self.status()["members"], [2, 3])
        stranger = self.gossamer("train", "run.yaml", "run.steps=100000", "--join", place,
                                 "model.hidden=17", code=2)
        self.assertIn("model.hidden", stranger.stderr)
        self.wait_until(lambda: self.status()["members"] == [2, 3])
        for job in (later, other):
            job.send_signal(signal.SIGINT)
        self.assertEqual({self.end_of(job)[0] for job in (later, other)}, {75})
        self.assertEqual(self.status()["state"], "stopped")

    def expect_survival(self, steps):
        """The short form of scripts/chaos.py."""
        script = pathlib.Path(__file__).resolve().parents[3] / "scripts" / "chaos.py"
        done = subprocess.run(
            [sys.executable, script, self.program, "run.yaml", "--steps", str(steps), "--every", "0.5",
             "--tolerance", "5"], cwd=self.folder, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"[1-9]\d* deaths")


class Survival(SurvivalCase):
    def test_goes_on_when_a_rank_is_killed(self):
        job = self.train(4, "run.steps=400")
        os.kill(self.pid_of(2), signal.SIGKILL)
        code, errors = self.end_of(job)
        self.assertEqual(code, 0, errors)
        records = self.expect_whole([0, 1, 3], 400)
        changes = [record for record in records if record["kind"] == "members"]
        self.assertEqual([change["members"] for change in changes], [[0, 1, 3]])
        self.expect_once("3 ranks go on", errors)

    def test_shows_and_keeps_its_members(self):
        """In watch, in the report, in a checkpoint, and after going on with fewer ranks."""
        job = self.train(4, "run.steps=100000", "log.report=true")
        os.kill(self.pid_of(2), signal.SIGKILL)
        self.wait_until(lambda: self.status().get("members") == [0, 1, 3])
        last = self.status()["last_change"]
        self.assertEqual((last["lost"], last["joined"]), ([2], []))
        self.wait_until(lambda: self.records()[-1]["kind"] == "step")
        view = self.gossamer("watch", "out", "--once").stdout
        self.assertRegex(view, r"3 ranks, members 0, 1, 3   epoch 1   goodput [0-9.]+ %")
        self.assertRegex(view, rf"last change after step {last['step']}, at 0:0\d: lost 2, "
                               r"recovery [0-9.]+ s")
        self.assertRegex(view, r"(?m)^member +loss")
        self.assertRegex(view, r"(?m)^ +3 ")
        job.send_signal(signal.SIGINT)
        self.assertIn("the checkpoint is saved", self.end_of(job)[1])
        self.assertEqual(json.loads(self.gossamer("checkpoint", "show", "out", "--json").stdout)
                         ["members"], [0, 1, 3])
        self.assertIn("\n  members 0, 1, 3\n", self.gossamer("checkpoint", "show", "out").stdout)
        step = self.status()["step"]
        self.gossamer("train", "--resume", "out", "--reshape", "average", "--processes", "2",
                      f"run.steps={step + 20}")
        records = self.expect_whole([0, 1], step + 20)
        resumed = [record for record in records if record["kind"] == "members"][-1]
        self.assertEqual((resumed["step"], resumed["members"]), (step, [0, 1]))
        page = (self.folder / "out" / "report.html").read_text()
        self.assertIn(f"<title>after step {last['step']}: lost 2</title>", page)
        self.assertIn(f"<title>after step {step}: resumed</title>", page)
        self.gossamer("report", "out", "--csv", "-")

    def test_records_a_timeline_of_those_that_are_left(self):
        for victim, left in [(0, [1, 2]), (1, [0, 2])]:
            with self.subTest(victim=victim):
                folder = f"out{victim}"
                job = self.train(3, "run.steps=300", "log.timeline=trace.json",
                                 "log.timeline_steps=[3, 290]", folder=folder)
                os.kill(self.pid_of(victim), signal.SIGKILL)
                code, errors = self.end_of(job)
                self.assertEqual(code, 0, errors)
                self.assertIn("the timeline of 287 steps is in trace.json", errors)
                self.expect_whole(left, 300, folder)
                events = json.loads((self.folder / "trace.json").read_text())["traceEvents"]
                names = [event["args"]["name"] for event in events
                         if event["name"] == "process_name"]
                self.assertEqual(names, [f"rank {rank}, member {member}"
                                         for rank, member in enumerate(left)])
                changes = [event for event in events if event["name"] == "members"]
                self.assertEqual({event["pid"] for event in changes}, {0, 1})
                for rank in range(2):
                    steps = {event["args"]["step"] for event in events
                             if event.get("cat") == "step" and event["pid"] == rank}
                    self.assertEqual(steps, set(range(4, 291)))

    def test_another_rank_writes_the_folder_when_rank0_is_killed(self):
        job = self.train(3, "run.steps=400")
        os.kill(self.pid_of(0), signal.SIGKILL)
        code, errors = self.end_of(job)
        self.assertEqual(code, 0, errors)
        self.expect_whole([1, 2], 400)

    def test_says_at_once_that_it_may_open_too_few_files(self):
        command = " ".join([self.program, "train", "tiny.yaml", "--processes", "3", "fault.mode=survive"])
        done = subprocess.run(["bash", "-c", f"ulimit -n 23; exec {command}"], cwd=self.folder, text=True,
                              capture_output=True, stdin=subprocess.DEVNULL, timeout=cli_case.K_PATIENCE_S)
        self.assertEqual(done.returncode, 74, done.stderr)
        self.assertRegex(done.stderr, r"a rank of 3 needs at least \d+ files and connections")

    def test_ends_when_too_few_are_left(self):
        # Rank 0 writes the folder; where it is lost, one that is left says how the run has ended.
        for ranks, victims in [(2, [1]), (2, [0]), (4, [0, 1, 2])]:
            with self.subTest(ranks=ranks, victims=victims):
                folder = "-".join(map(str, ["out", ranks, *victims]))
                job = self.train(ranks, "run.steps=100000", folder=folder)
                for pid in [self.pid_of(victim) for victim in victims]:
                    os.kill(pid, signal.SIGKILL)
                code, errors = self.end_of(job)
                self.assertNotEqual(code, 0)
                self.assertIn("too few ranks are left", errors)
                status = self.status(folder)
                self.assertEqual((status["state"], status["exit_code"]), ("failed", 74))
                self.assertIn("too few ranks are left", status["message"])

    def test_ends_together_when_one_is_told_to_stop(self):
        for victim in range(3):
            with self.subTest(victim=victim):
                folder = f"out{victim}"
                job = self.train(3, "run.steps=100000", folder=folder)
                os.kill(self.pid_of(victim), signal.SIGTERM)
                code, errors = self.end_of(job)
                self.assertEqual(code, 75, errors)
                self.assertEqual(self.status(folder)["members"], [0, 1, 2])
                self.assertEqual(self.status(folder)["state"], "stopped")

    def test_leaves_out_one_that_is_stopped(self):
        job = self.train(3, "run.steps=100000")
        stopped = self.pid_of(0)
        os.kill(stopped, signal.SIGSTOP)
        self.wait_until(lambda: self.status().get("members") == [1, 2])
        os.kill(stopped, signal.SIGCONT)
        self.wait_until(lambda: stopped not in processes_of(self.folder.resolve()))
        before = self.status()["step"]
        self.wait_until(lambda: self.status()["step"] > before)
        self.assertEqual(self.status()["members"], [1, 2])
        self.assertEqual(self.status()["state"], "running")
        job.send_signal(signal.SIGINT)
        self.assertIn(self.end_of(job)[0], (75, 130))

    def test_goes_on_wherever_a_rank_is_killed(self):
        """Steps, records, evaluations, checkpoints, the recovery after another death."""
        for seed in range(K_SEEDS):
            with self.subTest(seed=seed):
                chance = random.Random(seed)
                folder = f"out{seed}"
                job = self.train(5, "algorithm=" + ("gossip", "allreduce")[seed % 2], folder=folder)
                victims = chance.sample(range(5), 2)
                for victim in victims:
                    time.sleep(chance.uniform(0.0, 0.25))
                    running = processes_of(self.folder.resolve())
                    for pid, rank in running.items():
                        if rank == victim:
                            os.kill(pid, signal.SIGKILL)
                code, errors = self.end_of(job)
                self.assertEqual(code, 0, errors)
                self.expect_whole(self.status(folder)["members"], 120, folder)

    def test_takes_in_processes_that_meet_in_a_folder(self):
        (self.folder / "store").mkdir()
        self.expect_joins("file:store")
        self.assertEqual(list((self.folder / "store").iterdir()), [])

    def test_takes_in_processes_where_another_one_serves_the_place(self):
        place = self.free_place()
        server = self.serve(place)
        self.expect_joins(place)
        server.send_signal(signal.SIGTERM)
        self.assertEqual(self.end_of(server)[0], 0)

    def test_ends_where_the_place_is_back_and_has_forgotten_it(self):
        place = self.free_place()
        server = self.serve(place)
        jobs = self.train_at(place, 3)
        server.kill()
        server.wait()
        self.serve(place)
        jobs[2].kill()
        ends = [self.end_of(job) for job in jobs[:2]]
        self.assertEqual([code for code, _ in ends], [74, 74], ends)
        self.assertIn("the store has lost the run's record", ends[0][1] + ends[1][1])

    def free_place(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return f"127.0.0.1:{free.getsockname()[1]}"

    def serve(self, place):
        host, port = place.split(":")

        def answers():
            with socket.socket() as client:
                return client.connect_ex((host, int(port))) == 0

        return self.start([self.program, "rendezvous", place], until=answers)

    def test_grows_from_one(self):
        os.environ["GOSSAMER_SECRET"] = self.gossamer("secret").stdout.strip()
        (self.folder / "store").mkdir()
        command = [self.program, "train", "run.yaml", "run.steps=100000"]
        jobs = [self.start([*command, "--rendezvous", "file:store", "--world-size", "1"],
                           until=lambda: self.status().get("step", 0) >= 5)]
        # Both at once.
        jobs += [self.start([*command, "--join", "file:store"], until=lambda: True)
                 for _ in range(2)]
        self.wait_until(lambda: self.status()["members"] == [0, 1, 2])
        jobs[0].send_signal(signal.SIGINT)
        self.assertEqual([self.end_of(job)[0] for job in jobs], [75, 75, 75])

    def test_survives_some_deaths_and_joins(self):
        self.expect_survival(steps=1000)


class WideSurvival(SurvivalCase):
    def test_survives_a_while_of_deaths_and_joins(self):
        self.expect_survival(steps=4000)


class SurvivalInEtcd(SurvivalCase):
    def setUp(self):
        super().setUp()
        if not shutil.which("etcd"):
            self.skipTest("etcd is not installed (Debian: etcd-server)")
        refused = self.gossamer("train", "run.yaml", "--rendezvous", "etcd:http://127.0.0.1:1",
                                "--world-size", "2", "comm.security=none", "comm.timeout_s=0.1",
                                code=None)
        if refused.returncode != 74:
            self.assertIn("built without libcurl", refused.stderr)
            self.skipTest(refused.stderr)

    def expect_steps(self):
        before = self.status()["step"]
        self.wait_until(lambda: self.status()["step"] > before)

    def expect_members(self, members):
        self.wait_until(lambda: self.status()["members"] == members)
        self.expect_steps()

    def expect_stopped(self, jobs, etcd):
        jobs[0].send_signal(signal.SIGINT)
        self.assertEqual([self.end_of(job)[0] for job in jobs], [75] * len(jobs))
        self.assertEqual(etcd.keys(), [])

    def test_bears_a_store_that_is_killed_and_comes_back(self):
        etcd = Etcd(self)
        jobs = self.train_at(etcd.place, 4)
        etcd.kill(0)
        self.expect_steps()
        etcd.start(0)
        jobs[2].kill()
        self.expect_members([0, 1, 3])
        etcd.kill(0)
        jobs[0].kill()
        # They have noticed, and wait for the store.
        time.sleep(4)
        self.assertEqual([jobs[rank].poll() for rank in (1, 3)], [None, None])
        self.assertEqual(self.status()["members"], [0, 1, 3])
        etcd.start(0)
        self.expect_members([1, 3])
        self.expect_stopped([jobs[1], jobs[3]], etcd)

    def test_has_no_single_point_of_failure_with_three_members(self):
        etcd = Etcd(self, 3)
        jobs = self.train_at(etcd.place, 3)
        # The one that the ranks have asked.
        etcd.kill(0)
        jobs[0].kill()
        self.expect_members([1, 2])
        etcd.start(0)
        self.expect_stopped(jobs[1:], etcd)

    def test_takes_in_processes(self):
        etcd = Etcd(self)
        self.expect_joins(etcd.place)
        self.assertEqual(etcd.keys(), [])


if __name__ == "__main__":
    sys.exit(cli_case.main())
