#!/usr/bin/env python3
"""Prints what CI's test runs did, what they skipped and why, and adds it all up.

    scripts/ci_table.py NAME=JUNIT.xml... [--note TEXT]...
    scripts/ci_table.py --self-test

JUNIT.xml is what `ctest --output-junit` writes, of a run with --test-output-size-passed large enough
for whole outputs, or what pytest writes. A test of ctest counts as one, except that a share of a test program
(GOSSAMER_TEST_SHARDS) counts as the tests that ran in it. The table is followed by the first failure of
each failed test. The last line is "N passed, N failed, N skipped"; the exit code is 1 if a test
failed or a run has no test.
"""

import argparse
import collections
import re
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

RAN = re.compile(r"^\[==========\] (\d+) tests? from \d+ test suites? ran", re.M)
# "[ RUN      ] A.B", "file:12: Skipped", the reason, an empty line, "[  SKIPPED ] A.B (0 ms)".
SKIPPED = re.compile(r": Skipped\n(.*?)\n*^\[  SKIPPED \]", re.M | re.S)
FAILED = re.compile(r"^\[  FAILED  \] (\d+) tests?, listed below", re.M)
# The name of a failed test, and its failures: what its run has logged before them is left out.
FAILURE = re.compile(
    r"^\[ RUN      \] (\S+)\n(?:(?!\[ RUN ).*\n)*?(.*: Failure\n(?:(?!\[ RUN ).*\n)*?)\[  FAILED  \] \1\b", re.M
)
SHOWN_LINES = 8
# What a program of ours says that returns 77.
SAYS = re.compile(r"^.*\bskipped: *(.+)$", re.M)


class Run:
    def __init__(self, name, path):
        self.name = name
        self.passed = self.failed = 0
        self.reasons = collections.Counter()
        self.failures = []
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            self.add(case)

    @property
    def skipped(self):
        return sum(self.reasons.values())

    def add(self, case):
        if case.get("status") is None:
            self.add_of_pytest(case)
            return
        output = case.findtext("system-out") or ""
        reasons = [" ".join(reason.split()) for reason in SKIPPED.findall(output)]
        status = case.get("status")
        ran = RAN.search(output)
        if status == "run" and ran:
            self.reasons.update(reasons)
            self.passed += int(ran.group(1)) - len(reasons)
        elif status == "run":
            self.passed += 1
        elif status == "fail":
            many = FAILED.search(output)
            failed = int(many.group(1)) if many else 1
            self.failed += failed
            # A test that ended its process, or one without GoogleTest, says why at its end.
            last_lines = "\n".join(output.splitlines()[-SHOWN_LINES:])
            self.failures += FAILURE.findall(output) or [(case.get("name"), last_lines)]
            if many and ran:
                self.reasons.update(reasons)
                self.passed += int(ran.group(1)) - len(reasons) - failed
        elif status == "disabled":
            self.reasons["disabled in the source"] += 1
        elif reasons:
            self.reasons.update(reasons)
        else:
            skipped = case.find("skipped")
            said = SAYS.search(output)
            why = skipped.get("message", "") if skipped is not None else "ctest did not start it"
            self.reasons[said.group(1) if said else why or "no reason given"] += 1

    def add_of_pytest(self, case):
        fault = case.find("failure")
        if fault is None:
            fault = case.find("error")
        skipped = case.find("skipped")
        if fault is not None:
            self.failed += 1
            self.failures.append((case.get("name"), "\n".join((fault.text or "").splitlines()[-SHOWN_LINES:])))
        elif skipped is not None:
            self.reasons[skipped.get("message")] += 1
        else:
            self.passed += 1


def table(runs, notes):
    lines = [f"{'tests':<40} {'passed':>7} {'failed':>7} {'skipped':>7}"]
    for run in runs:
        lines.append(f"{run.name:<40} {run.passed:>7} {run.failed:>7} {run.skipped:>7}")
    if notes or any(run.reasons for run in runs):
        lines += ["", "skipped, and why:"]
    for run in runs:
        for reason, count in sorted(run.reasons.items()):
            lines.append(f"  {run.name}: {count} x {reason}")
    lines += [f"  {note}" for note in notes]
    for run in runs:
        for name, text in run.failures:
            lines += ["", f"{run.name} failed: {name}"]
            lines += [f"  {line}" for line in text.splitlines()[:SHOWN_LINES]]
    passed, failed, skipped = (sum(getattr(r, what) for r in runs) for what in ("passed", "failed", "skipped"))
    lines += ["", f"{passed} passed, {failed} failed, {skipped} skipped"]
    return lines


SAMPLE = """<testsuite>
<testcase name="a" status="run"><system-out>[==========] 1 test from 1 test suite ran. (0 ms total)
</system-out></testcase>
<testcase name="b" status="run"><system-out>hello</system-out></testcase>
<testcase name="shard" status="run"><system-out>[ RUN      ] A.B
/x/a_test.cpp:3: Skipped
no file /y

[  SKIPPED ] A.B (0 ms)
[==========] 5 tests from 2 test suites ran. (0 ms total)
[  PASSED  ] 4 tests.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] A.B
</system-out></testcase>
<testcase name="c" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/><system-out>[ RUN      ] A.B
/x/a_test.cpp:3: Skipped
no file /y

[  SKIPPED ] A.B (0 ms)
[==========] 1 test from 1 test suite ran. (0 ms total)
</system-out></testcase>
<testcase name="d" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/><system-out>x: skipped: needs 2 GPUs</system-out></testcase>
<testcase name="e" status="disabled"><skipped message="Disabled"/></testcase>
<testcase name="f" status="fail"><system-out>[ RUN      ] A.B
[       OK ] A.B (0 ms)
[ RUN      ] A/C.D/1
a line of a log
/x/a_test.cpp:5: Failure
one is not two
[  FAILED  ] A/C.D/1, where GetParam() = 1 (0 ms)
[ RUN      ] A/C.D/2
/x/a_test.cpp:6: Failure
[  FAILED  ] A/C.D/2, where GetParam() = 2 (0 ms)
[==========] 6 tests from 2 test suites ran. (0 ms total)
[  PASSED  ] 4 tests.
[  FAILED  ] 2 tests, listed below:
</system-out></testcase>
<testcase name="g" status="fail"><system-out>ERROR: AddressSanitizer</system-out></testcase>
<testcase classname="tests.x" name="h" time="0.1"/>
<testcase classname="tests.x" name="i" time="0.1"><skipped type="pytest.skip" message="no MPI here">x</skipped></testcase>
<testcase classname="tests.x" name="j" time="0.1"><failure message="m">E  one is not two</failure></testcase>
</testsuite>
"""


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "junit.xml")
        path.write_text(SAMPLE, encoding="utf-8")
        run = Run("sample", path)
    found = (run.passed, run.failed, dict(run.reasons), run.failures)
    expected = (
        11,
        4,
        {"no file /y": 2, "needs 2 GPUs": 1, "disabled in the source": 1, "no MPI here": 1},
        [
            ("A/C.D/1", "/x/a_test.cpp:5: Failure\none is not two\n"),
            ("A/C.D/2", "/x/a_test.cpp:6: Failure\n"),
            ("g", "ERROR: AddressSanitizer"),
            ("j", "E  one is not two"),
        ],
    )
    if found != expected or table([run], [])[-1] != "11 passed, 4 failed, 5 skipped":
        print(f"ci_table: self-test: expected {expected}, found {found}")
        return 1
    print("ci_table: the self-test holds")
    return 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", metavar="NAME=JUNIT.xml")
    parser.add_argument("--note", action="append", default=[], help="one more line of what was skipped")
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    runs = [Run(*entry.split("=", 1)) for entry in arguments.runs]
    print("\n".join(table(runs, arguments.note)))
    return 1 if any(run.failed or run.passed == 0 for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
