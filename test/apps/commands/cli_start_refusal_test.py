#!/usr/bin/env python3
"""What the program refuses when a run starts without MPI, and secrets. How to run it: cli_case.py."""

import stat
import sys

import cli_case
from cli_case import CliCase, needs_mpi


class Start(CliCase):
    K_MEET = ["--rendezvous", "192.0.2.1:29500", "--world-size", "2"]

    def expect_refusal(self, text, *arguments, **variables):
        done = self.gossamer("train", "tiny.yaml", *arguments, code=2, variables=variables)
        self.expect_once(text, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertEqual([path.name for path in self.folder.iterdir()], ["tiny.yaml"])

    def test_refuses_options_that_contradict_one_another(self):
        meet = self.K_MEET
        self.expect_refusal("--ranks: starts threads", "--ranks", "2", "--processes", "2")
        self.expect_refusal("--processes: starts all ranks", "--processes", "2", *meet)
        self.expect_refusal("--world-size: is missing", *meet[:2])
        self.expect_refusal("GOSSAMER_WORLD_SIZE: is many", GOSSAMER_RENDEZVOUS=meet[1],
                            GOSSAMER_WORLD_SIZE="many")

    def test_reads_the_configuration_before_it_starts_processes(self):
        self.expect_refusal("comm.timeout_s", "--processes", "2", "comm.timeout_s=0")
        self.expect_refusal("comm.security", "--processes", "2", "comm.security=perhaps")

    def test_is_refused_alike_in_commands_without_a_configuration(self):
        for command, text, arguments in [
                (["bench", "step"], "is asked for", ["--backend", "threads", "--processes", "2"]),
                (["bench", "step"], "where the ranks meet", ["--backend", "tcp"]),
                (["bench", "links"], "--world-size: is missing", self.K_MEET[:2]),
                (["bench", "links"], "--security none", self.K_MEET),
                (["replay", "case"], "--streams", ["--streams", "65", "--processes", "2"]),
                (["replay", "case"], "--security", ["--security", "perhaps", "--processes", "2"])]:
            with self.subTest(command=command, arguments=arguments):
                done = self.gossamer(*command, *arguments, code=2)
                self.expect_once(text, done.stderr)
                self.assertEqual(done.stdout, "")

    def test_is_refused_in_studies_before_the_first_run(self):
        self.write("study.yaml", "study: {workers: 2, steps: 4, topologies: [ring], "
                                 "optimizers: [sgd]}\n")
        for text, arguments in [("--world-size: is missing", self.K_MEET[:2]),
                                ("or 3 ranks", ["study.workers=3", "--processes", "2"])]:
            done = self.gossamer("bench", "topologies", "study.yaml", *arguments, code=2)
            self.expect_once(text, done.stderr)
        self.assertFalse((self.folder / "runs").exists())

    @needs_mpi
    def test_of_processes_is_refused_once_under_mpirun(self):
        done = self.mpirun(2, "train", "tiny.yaml", "--processes", "2", code=2)
        self.expect_once("allowed: without mpirun, srun and torchrun", done.stderr)

    def test_wants_a_secret_where_others_reach_the_store(self):
        self.expect_refusal("GOSSAMER_SECRET: is not set, and others may reach 192.0.2.1:29500",
                            *self.K_MEET)
        self.expect_refusal("comm.security=none", RANK="0", WORLD_SIZE="2", MASTER_ADDR="192.0.2.1",
                            MASTER_PORT="29500")


class Secret(CliCase):
    def test_is_printed(self):
        secrets = {self.gossamer("secret").stdout for _ in range(3)}
        self.assertEqual(len(secrets), 3)
        for secret in secrets:
            self.assertRegex(secret, r"^[0-9a-f]{64}\n$")

    def test_is_written_for_its_user_alone_and_not_replaced(self):
        self.assertIn("GOSSAMER_SECRET_FILE", self.gossamer("secret", "-o", "secret").stdout)
        path = self.folder / "secret"
        self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
        secret = path.read_text()
        self.assertRegex(secret, r"^[0-9a-f]{64}\n$")
        self.assertIn("-o: secret exists", self.gossamer("secret", "-o", "secret", code=2).stderr)
        self.assertEqual(path.read_text(), secret)


if __name__ == "__main__":
    sys.exit(cli_case.main())
