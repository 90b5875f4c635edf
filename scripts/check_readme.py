#!/usr/bin/env python3
"""Checks that what the README quotes is what the project has.

- the C++ example in the README is examples/own_model/main.cpp, line for line;
- every file the README links to or names in a command exists.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main() -> int:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    problems = []
    example = (ROOT / "examples/own_model/main.cpp").read_text(encoding="utf-8")
    blocks = re.findall(r"```cpp\n(.*?)```", readme, re.S)
    if example not in blocks:
        problems.append("README.md: the C++ example is not examples/own_model/main.cpp; copy the file")
    paths = set(re.findall(r"\]\(([^)#:]+)\)", readme))
    paths |= set(re.findall(r"\b((?:scripts|configs|docs|examples)/[\w./-]+\w)", readme))
    for path in sorted(paths):
        if not (ROOT / path).exists():
            problems.append(f"README.md: {path} does not exist")
    print("\n".join(problems) or f"check_readme: example and {len(paths)} paths are right")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
