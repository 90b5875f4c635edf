#!/usr/bin/env python3
"""Checks who includes whom, by the table BELOW. docs/design/README.md draws it as arrows.

A folder may include itself and what is below it. The unit comm/backends (a header and its source) is the only one that
sees all backends. The trainer never sees the lab, and the tools of the lab do not see each other, except that plan sees
bench. No more than two units of the project include each other, directly or by way of others.

Project headers are included by their path from the project's root and must exist. Headers of other libraries are
allowed only in the folders named in LIBRARIES. Tests include what they like.

    scripts/check_includes.py [--root DIR]     prints file:line and the rule; exit code 1 if any
    scripts/check_includes.py --self-test      proves on made-up files that each rule bites
"""

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path

# The contract of communication, and what the engine uses beside it.
WIRES = ["comm/elastic", "comm/collectives", "comm"]
COMM = ["comm/backends", "comm/start", "comm/tcp", "comm/mpi", "comm/threads", "comm/rendezvous", "comm/worker",
        "comm/device", "comm/nccl"] + WIRES
BELOW_CORE = ["topology", "optim", "base"] + WIRES
CORE = ["core/step", "core/algorithms", "core/bucket", "core/exchange", "core/state"]
LIBRARY = ["core/torch", "core/trace", "core/checkpoint"] + CORE + ["topology", "optim", "base"] + COMM
TRAINER = ["apps/train", "apps/models", "apps/data", "apps/records"]
LAB = ["apps/lab/plan", "apps/lab/simulate", "apps/lab/replay", "apps/lab/study", "apps/lab/bench"]
# Each folder with the folders it may include besides itself. The longest name that fits counts.
BELOW = {
    "base": [],
    "topology": ["base"],
    "comm": ["base"],
    "comm/worker": ["comm", "base"],
    "comm/collectives": ["comm/worker", "comm", "base"],
    "comm/rendezvous": ["comm", "base"],
    "comm/elastic": ["comm/rendezvous", "comm", "base"],
    "comm/threads": ["comm/elastic", "comm/rendezvous", "comm/collectives", "comm/worker", "comm", "base"],
    "comm/mpi": ["comm/collectives", "comm/worker", "comm", "base"],
    "comm/nccl": ["comm", "base"],
    "comm/device": ["comm/nccl", "comm/elastic", "comm/collectives", "comm", "base"],
    "comm/tcp": ["comm/elastic", "comm/rendezvous", "comm/collectives", "comm/worker", "comm", "base"],
    "comm/start": ["comm/backends", "comm/tcp", "comm/rendezvous", "comm", "base"],
    # One unit, not a folder.
    "comm/backends": ["comm/tcp", "comm/mpi", "comm/threads", "comm", "base"],
    "optim": ["base"],
    "core/exchange": BELOW_CORE,
    "core/bucket": ["core/exchange"] + BELOW_CORE,
    "core/algorithms": ["core/bucket", "core/exchange"] + BELOW_CORE,
    "core/state": BELOW_CORE,
    "core/step": ["core/algorithms", "core/bucket", "core/exchange", "core/state"] + BELOW_CORE,
    "core/checkpoint": BELOW_CORE,
    "core/trace": ["core/checkpoint"] + BELOW_CORE,
    "core/torch": CORE + ["comm/start"] + BELOW_CORE,
    # Without LibTorch, so that one module works with every PyTorch.
    "python": ["apps/lab/plan", "apps/lab/simulate", "apps/records", "core/checkpoint", "core/trace", "topology", "optim", "base"] + CORE + COMM,
    "apps/data": ["core/checkpoint", "base"],
    "apps/models": ["apps/data"] + LIBRARY,
    "apps/train": ["apps/models", "apps/data", "apps/records"] + LIBRARY,
    "apps/records": LIBRARY,
    "apps/lab/bench": TRAINER + LIBRARY,
    "apps/lab/plan": ["apps/lab/bench"] + TRAINER + LIBRARY,
    "apps/lab/simulate": TRAINER + LIBRARY,
    "apps/lab/replay": TRAINER + LIBRARY,
    "apps/lab/study": TRAINER + LIBRARY,
    "apps/commands": LAB + TRAINER + LIBRARY,
    "apps/program": ["apps/commands"] + TRAINER + LIBRARY,
    "apps": ["apps/program"] + LIBRARY,
    # Examples see what is installed: of the program, run_program() alone.
    "examples": ["apps/program"] + LIBRARY,
}
# Their includes are not checked, except that CUDA files stay without LibTorch.
FREE = {"cmake", "test"}

# (library, its headers, the folders that may include them)
LIBRARIES = [
    ("LibTorch", r"(torch|ATen|c10|caffe2|torchgen)/", ["core/torch", "apps", "examples"]),
    ("MPI", r"(mpi|mpi-ext)\.h$|openmpi/", ["comm", "optim", "base"]),
    ("NCCL", r"nccl[\w.]*\.h$", ["comm", "optim", "base"]),
    (
        "CUDA",
        r"(cuda|cu[A-Z]|cublas|cufft|curand|cusolver|cusparse|cupti|nvml|nvtx|nvToolsExt)[\w.]*"
        r"\.(h|hpp|cuh)$"
        r"|(cuda|cub|thrust|nvtx3|cooperative_groups)/"
        r"|(device_launch_parameters|cooperative_groups|driver_types|vector_types|mma)\.h$",
        ["comm", "optim", "base"],
    ),
    ("Eigen", r"(eigen3/)?(unsupported/)?Eigen/", ["topology", "apps"]),
    ("Spectra", r"Spectra/", ["topology"]),
    ("yaml-cpp", r"yaml-cpp/", ["base"]),
    ("spdlog", r"(spdlog|fmt)/", ["base"]),
    ("nanobind", r"nanobind/", ["python"]),
    ("asio", r"asio(\.hpp$|/)", ["comm"]),
    ("OpenSSL", r"openssl/", ["comm", "core/checkpoint"]),
    ("libcurl", r"curl/", ["comm"]),
]
LIBRARIES = [(name, re.compile(headers), folders) for name, headers, folders in LIBRARIES]
TORCH = LIBRARIES[0][1]

SUFFIXES = {".hpp", ".h", ".cpp", ".cc", ".cu", ".cuh", ".inl", ".ipp"}
SKIPPED = {"build", "runs", "docs", "__pycache__", "node_modules"}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*(?:include|include_next|import)[ \t]*([<"])([^>"\n]+)[>"]', re.M)
# Comments and raw strings hide includes; other strings and characters are matched so that what
# looks like a comment inside them is none; so are names such as <a//b>.
HIDDEN = re.compile(
    r'(?P<hidden>//[^\n]*|/\*.*?\*/|R"(?P<mark>[^()\s\\]*)\(.*?\)(?P=mark)")'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.|[^'\\\n])*'"
    r"|#[ \t]*include[ \t]*<[^>\n]*>",
    re.S,
)


def includes_of(path):
    """The includes of a file as (line, quoted, header)."""
    text = path.read_text(encoding="utf-8", errors="replace")
    text = HIDDEN.sub(
        lambda m: m.group() if m.group("hidden") is None else "\n" * m.group().count("\n"), text
    )
    for match in INCLUDE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield line, match.group(1) == '"', match.group(2)


def folder_of(path):
    """The folder or unit of the table that a path (relative, with slashes) lies in, or None."""
    fitting = [
        folder for folder in list(BELOW) + sorted(FREE) if path.startswith((folder + "/", folder + "."))
    ]
    return max(fitting, key=len, default=None)


def is_in(folder, names):
    return any(folder == name or folder.startswith(name + "/") for name in names)


def sources(root):
    for where, folders, files in os.walk(root):
        folders[:] = sorted(
            f
            for f in folders
            if f not in SKIPPED
            and not f.startswith(".")
            and not f.startswith("cmake-build")
            and not os.path.exists(os.path.join(where, f, "CMakeCache.txt"))
        )
        for name in sorted(files):
            if Path(name).suffix in SUFFIXES:
                yield Path(where, name)


def unit_of(path):
    """A header and its source are one unit."""
    return path.rpartition(".")[0]


def circles_of(edges):
    """The sets of more than two units that lead to each other: {unit: units that it includes}."""

    def reached(begin, along):
        found, todo = {begin}, [begin]
        while todo:
            for unit in along.get(todo.pop(), ()):
                if unit not in found:
                    found.add(unit)
                    todo.append(unit)
        return found

    back = {}
    for unit, others in edges.items():
        for other in others:
            back.setdefault(other, set()).add(unit)
    circles, done = [], set()
    for unit in sorted(edges):
        if unit not in done:
            circle = reached(unit, edges) & reached(unit, back)
            done |= circle
            if len(circle) > 2:
                circles.append(sorted(circle))
    return circles


class Checker:
    def __init__(self, root):
        self.root = Path(root)
        self.includes = {}

    def read(self, name):
        """The includes of a file of the project; none if there is no such file."""
        if name not in self.includes:
            path = self.root / name
            self.includes[name] = list(includes_of(path)) if path.is_file() else []
        return self.includes[name]

    def way_to_torch(self, name, seen):
        """The includes that lead from a file to a header of LibTorch, or None."""
        seen.add(name)
        for _, quoted, header in self.read(name):
            if TORCH.match(header):
                return [header]
            if quoted and header not in seen:
                way = self.way_to_torch(header, seen)
                if way is not None:
                    return [header] + way
        return None

    def check_file(self, name):
        """Yields (line, what is wrong) for a file named relative to the root."""
        folder = folder_of(name)
        if folder is None:
            yield 1, (
                "this folder is not in the table of folders: "
                "move the file, or extend scripts/check_includes.py"
            )
            return
        cuda = Path(name).suffix in {".cu", ".cuh"}
        for line, quoted, header in self.read(name):
            if cuda and TORCH.match(header):
                yield line, f"<{header}>: CUDA files do not include LibTorch (it compiles for minutes)"
                continue
            if cuda and quoted:
                way = self.way_to_torch(header, {name})
                if way is not None:
                    yield line, (
                        f'"{header}": CUDA files do not include LibTorch, and this leads there: '
                        + " -> ".join(way)
                    )
            installed = folder == "examples" and quoted and header.startswith("gossamer/")
            if installed:
                header = header[len("gossamer/") :]
            if folder == "examples" and quoted and ((self.root / name).parent / header).is_file():
                continue  # an example has its own headers beside it
            if quoted and not (self.root / header).is_file():
                yield line, (
                    f'"{header}": there is no such file; project headers are named by their path '
                    "from the project's root, other libraries go in <>"
                )
            elif quoted and folder not in FREE:
                target = folder_of(header)
                if target is None or target in FREE:
                    yield line, f'"{header}": only tests include {header.split("/")[0]}'
                elif target != folder and target not in BELOW[folder]:
                    allowed = ", ".join([folder] + BELOW[folder])
                    yield line, f'"{header}": {folder} does not see {target}; it may include: {allowed}'
            if folder in FREE or quoted:
                continue
            for library, headers, folders in LIBRARIES:
                if headers.match(header) and not is_in(folder, folders):
                    yield line, f"<{header}>: {library} is included only in: {', '.join(folders)}"

    def check(self):
        """All that is wrong, as lines of text, and the number of files."""
        found = []
        count = 0
        for path in sources(self.root):
            name = path.relative_to(self.root).as_posix()
            count += 1
            found += [f"{name}:{line}: {what}" for line, what in self.check_file(name)]
        return found + self.check_circles(), count

    def check_circles(self):
        edges = {}
        for name, includes in self.includes.items():
            if folder_of(name) not in FREE:
                others = {unit_of(header) for _, quoted, header in includes if quoted}
                edges.setdefault(unit_of(name), set()).update(others - {unit_of(name)})
        return [
            f"{circle[0]}.hpp:1: {len(circle)} units include each other: {', '.join(circle)}"
            for circle in circles_of(edges)
        ]


# ---- self-test ---------------------------------------------------------------------------------

# (file, one line of it, words of the complaint, or None where there must be no complaint)
CASES = [
    ("apps/train/a.cpp", '#include "topology/x.hpp"', None),
    ("apps/train/a.cpp", '#include "apps/lab/study/x.hpp"', "apps/train does not see apps/lab/study"),
    ("apps/lab/plan/deep/a.cpp", '#include "apps/train/x.hpp"', None),
    ("apps/main.cpp", '#include "apps/program/x.hpp"', None),
    ("apps/main.cpp", "#include <torch/torch.h>", None),
    ("comm/backends.cpp", '#include "comm/tcp/x.hpp"', None),
    ("comm/a.cpp", '#include "comm/tcp/x.hpp"', "comm does not see comm/tcp"),
    ("comm/tcp/a.cpp", '#include "comm/mpi/x.hpp"', "comm/tcp does not see comm/mpi"),
    ("core/step/a.cpp", '#include "core/torch/x.hpp"', "core/step does not see core/torch"),
    ("core/step/a.cpp", "#include <torch/torch.h>", "LibTorch is included only in"),
    ("core/step/a.cpp", "  #  include<mpi.h>", "MPI is included only in"),
    ("core/torch/a.cpp", "#include <nccl.h>", "NCCL is included only in"),
    ("apps/train/a.cpp", "#include <cub/cub.cuh>", "CUDA is included only in"),
    ("core/step/a.cpp", "#include <cuda_runtime.h>", "CUDA is included only in"),
    ("base/a.cpp", "#include <Eigen/Core>", "Eigen is included only in"),
    ("apps/lab/plan/a.cpp", "#include <Spectra/SymEigsSolver.h>", "Spectra is included only in"),
    ("apps/train/a.cpp", "#include <yaml-cpp/yaml.h>", "yaml-cpp is included only in"),
    ("comm/a.cpp", "#include <fmt/format.h>", "spdlog is included only in"),
    ("core/step/a.cpp", "#include <nanobind/nanobind.h>", "nanobind is included only in"),
    ("core/step/a.cpp", "#include <asio.hpp>", "asio is included only in"),
    ("comm/tcp/a.hpp", "#include <asio/buffer.hpp>", None),
    ("apps/a.cpp", "#include <openssl/rand.h>", "OpenSSL is included only in"),
    ("apps/a.cpp", "#include <curl/curl.h>", "libcurl is included only in"),
    ("core/step/a.cpp", '#include "x.hpp"', "there is no such file"),
    ("core/step/a.cpp", '#include "gossamer/base/x.hpp"', "there is no such file"),
    ("core/step/a.cpp", '#include "test/x.hpp"', "only tests include test"),
    ("test/comm/a.cpp", '#include "apps/data/x.hpp"', None),
    ("test/comm/a.cpp", '#include "helpers.hpp"', "there is no such file"),
    ("test/comm/a.cpp", "#include <Eigen/Core>", None),
    ("examples/a.cpp", '#include "x.hpp"', None),
    ("examples/a.cpp", '#include "y.hpp"', "there is no such file"),
    ("examples/own/a.cpp", '#include "gossamer/core/torch/x.hpp"', None),
    ("examples/own/a.cpp", '#include "gossamer/core/missing.hpp"', "there is no such file"),
    ("examples/own/a.cpp", '#include "gossamer/apps/data/x.hpp"', "examples does not see apps/data"),
    ("optim/a.cu", "#include <cuda_runtime.h>", None),
    ("core/torch/a.cu", "#include <ATen/ATen.h>", "CUDA files do not include LibTorch"),
    ("core/torch/a.cuh", '#include "core/torch/uses_torch.hpp"', "leads there"),
    ("test/core/a.cu", '#include "core/torch/uses_torch.hpp"', "leads there"),
    ("elsewhere/a.cpp", "#include <vector>", "not in the table of folders"),
    ("topology/a.cpp", "// #include <mpi.h>", None),
    ("topology/a.cpp", "/*\n#include <mpi.h>\n*/", None),
    ("topology/a.cpp", 'auto s = R"(\n#include <mpi.h>\n)";', None),
    ("topology/a.cpp", 'auto s = "/*";\n#include <mpi.h>\n// */', "topology/a.cpp:3: <mpi.h>"),
    ("build/release/a.cpp", '#include "x.hpp"', None),
    (".venv/a.cpp", '#include "x.hpp"', None),
]


def self_test():
    wrong = 0
    for edges, circles in (
        ({"a": {"b"}, "b": {"a"}, "c": {"a"}}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}, [["a", "b", "c"]]),
    ):
        if circles_of(edges) != circles:
            wrong += 1
            print(f"self-test: circles of {edges}: expected {circles}, found {circles_of(edges)}")
    hidden = {folder: ["apps"] for folder in LIBRARY}
    hidden |= {folder: ["apps/lab", "apps/commands"] for folder in TRAINER}
    hidden |= {tool: [other for other in LAB if (tool, other) != ("apps/lab/plan", "apps/lab/bench")] for tool in LAB}
    for folder, names in hidden.items():
        seen = [name for name in BELOW[folder] if is_in(name, names)]
        if seen:
            wrong += 1
            print(f"self-test: the row of {folder} has {seen}")
    for name, text, words in CASES:
        with tempfile.TemporaryDirectory() as root:
            files = {f"{folder}/x.hpp": "" for folder in list(BELOW) + sorted(FREE)}
            files |= {
                "core/torch/uses_torch.hpp": '#include "core/torch/deep.hpp"\n',
                "core/torch/deep.hpp": "#include <torch/torch.h>\n",
                name: "#pragma once\n" + text + "\n",
            }
            for file, content in files.items():
                path = Path(root, file)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content, encoding="utf-8")
            found, _ = Checker(root).check()
        if words is None:
            good = not found
        else:
            good = all(line.startswith(name + ":") for line in found) and any(
                words in line for line in found
            )
        if not good:
            wrong += 1
            expected = "no complaint" if words is None else f"a complaint with '{words}'"
            print(f"self-test: {name} with {text!r}: expected {expected}, found {found}")
    print(f"check_includes: self-test, {len(CASES) + 2 - wrong} of {len(CASES) + 2} cases hold")
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--root", default=Path(__file__).resolve().parent.parent, help="the project's folder"
    )
    parser.add_argument("--self-test", action="store_true", help="prove that each rule bites")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    if not Path(arguments.root).is_dir():
        print(f"check_includes: there is no folder {arguments.root}", file=sys.stderr)
        return 2
    found, count = Checker(arguments.root).check()
    for line in found:
        print(line)
    if found:
        print(f"check_includes: {len(found)} includes break the rules above", file=sys.stderr)
        return 1
    print(f"check_includes: {count} files, all includes go the right way")
    return 0


if __name__ == "__main__":
    sys.exit(main())
