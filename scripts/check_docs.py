#!/usr/bin/env python3
"""Checks the documents: README.md, CONTRIBUTING.md and the pages of docs.

- C++: a line `<!-- from PATH -->` stands before every block, and the block's lines stand in that
  file, one after the other. A line `// ...` leaves lines of the file out. `<!-- all of PATH -->`
  means the whole file. The build must compile the file.
- Links and images: the file exists, and the page has the heading.
- Paths: the project has every file that a page names. It has every page that a source file names.

    scripts/check_docs.py [--root DIR]     prints file:line and what is wrong; exit code 1 if any
    scripts/check_docs.py --self-test      proves on made-up files that each check bites
"""
import argparse
import pathlib
import re
import sys
import tempfile

SOURCES = ("apps", "base", "comm", "configs", "core", "examples", "optim", "scripts", "test", "topology")
CODE = {".cpp", ".hpp", ".cu", ".cuh"}
MARK = re.compile(r"\s*<!-- (from|all of) (\S+) -->\s*$")
FENCE = re.compile(r"(\s*)```(\w*)")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
IMAGE = re.compile(r'<img src="([^"]+)"')
# Files of C++ and CUDA anywhere, and everything in the folders that users see.
PATH = re.compile(
    r"(?<![\w./-])((?:apps|base|comm|core|optim|test|topology)/[\w./-]+\.(?:cpp|hpp|cuh?|py|sh)\b"
    r"|(?:scripts|configs|docs|examples)/[\w./-]*\w)")
PAGE = re.compile(r"\bdocs/[\w/-]+\.md\b")


class Checker:
    def __init__(self, root):
        self.root = root
        self.problems = []
        self.num_blocks = self.num_links = self.num_paths = 0
        self.text = {path: path.read_text(encoding="utf-8") for path in self.files()}
        self.anchors = {path: anchors_of(text) for path, text in self.text.items() if path.suffix == ".md"}

    def files(self):
        for pattern in ("*.md", "docs/**/*.md"):
            yield from sorted(self.root.glob(pattern))
        for folder in SOURCES:
            for path in sorted((self.root / folder).rglob("*")):
                if path.is_file() and (path.suffix in CODE | {".py", ".sh", ".yaml"}
                                       or path.name == "CMakeLists.txt"):
                    yield path

    def fail(self, path, line, what):
        self.problems.append(f"{path.relative_to(self.root)}:{line}: {what}")

    def run(self):
        for path, text in self.text.items():
            if path.suffix == ".md":
                self.check_page(path, text.split("\n"))
                continue
            for number, line in enumerate(text.split("\n"), 1):
                for page in PAGE.findall(line):
                    if not (self.root / page).exists() and path.name != "check_docs.py":
                        self.fail(path, number, f"{page} does not exist")
        return self.problems

    def check_page(self, path, lines):
        mark, block, fence = None, None, None
        for number, line in enumerate(lines, 1):
            found = FENCE.match(line)
            if block is not None:
                if found and not found[2]:
                    if fence == "cpp":
                        self.check_block(path, first, mark, block)
                    mark = block = None
                else:
                    block.append(line)
                continue
            if found:
                fence, block, first = found[2], [], number
                continue
            if MARK.match(line):
                mark = MARK.match(line)
                continue
            if line.strip():
                mark = None
            self.check_line(path, number, line)

    def check_line(self, path, number, line):
        is_command = re.match(r" {4}(?! *- )", line)
        if not is_command:
            prose = re.sub(r"`[^`]*`", "", line)
            for target in LINK.findall(prose) + IMAGE.findall(prose):
                self.check_link(path, number, target)
        for name in PATH.findall(re.sub(r"\]\([^)]*\)|https?://\S+", "", line)):
            self.num_paths += 1
            if not (self.root / name).exists():
                self.fail(path, number, f"{name} does not exist")

    def check_link(self, path, number, target):
        if re.match(r"[a-z]+:", target):
            return
        self.num_links += 1
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists():
            self.fail(path, number, f"the link {target} leads to no file")
        elif anchor and anchor not in self.anchors.get(file, ()):
            self.fail(path, number, f"the link {target} leads to no heading")

    def check_block(self, path, number, mark, block):
        self.num_blocks += 1
        if mark is None:
            return self.fail(path, number, "a block of C++ without <!-- from PATH --> before it")
        file = self.root / mark[2]
        if file not in self.text:
            return self.fail(path, number, f"{mark[2]} does not exist, or is no source file")
        if not self.is_compiled(file):
            self.fail(path, number, f"nothing compiles {mark[2]}")
        content = self.text[file].rstrip("\n").split("\n")
        if mark[1] == "all of":
            if block != content:
                self.fail(path, number, f"the block is not {mark[2]}; copy the file")
            return None
        missing = first_missing(block, content)
        if missing is not None:
            self.fail(path, number + 1 + missing, f"{mark[2]} does not go on with: {block[missing].strip()}")
        return None

    def is_compiled(self, file):
        """A CMakeLists.txt above the file names it, perhaps by a pattern, or another source file includes it."""
        for folder in file.parents:
            name = str(file.relative_to(folder))
            words = re.findall(r"[\w/.*-]+", self.text.get(folder / "CMakeLists.txt", ""))
            if any(re.fullmatch(re.escape(word).replace(r"\*", "[^/]*"), name) for word in words):
                return True
            if folder == self.root:
                break
        include = f'#include "{file.relative_to(self.root)}"'
        return any(include in text for path, text in self.text.items() if path.suffix in CODE)


def first_missing(block, content):
    """The index of the first line that `content` lacks in this order; None if it has all lines."""
    worst = 0
    for start in range(len(content)):
        found = first_missing_from(block, content, start)
        if found is None:
            return None
        worst = max(worst, found)
    return worst


def first_missing_from(block, content, start):
    indent = indent_of(content[start]) - indent_of(block[0]) if block else 0
    line, skips = start, False
    for index, wanted in enumerate(block):
        if wanted.strip() == "// ...":
            skips = True
            continue
        wanted = " " * indent + wanted if wanted.strip() and indent > 0 else wanted
        if skips:
            while line < len(content) and content[line] != wanted:
                line += 1
            skips = False
        if line >= len(content) or content[line] != wanted:
            return index
        line += 1
    return None


def indent_of(line):
    return len(line) - len(line.lstrip(" "))


def anchors_of(text):
    """The anchors that GitHub gives to headings."""
    anchors = set()
    is_code = False
    for line in text.split("\n"):
        if FENCE.match(line):
            is_code = not is_code
        heading = re.match(r"#+ +(.*)", line)
        if is_code or not heading:
            continue
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).strip().lower()
        name = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
        anchor, count = name, 0
        while anchor in anchors:
            count += 1
            anchor = f"{name}-{count}"
        anchors.add(anchor)
    return anchors


SELF_TEST = {
    "core/CMakeLists.txt": "add_library(core a.cpp)\n",
    "core/a.cpp": "int a() {\n  int x = 1;\n\n  return x;\n}\nint b();\n",
    "core/alone.cpp": "int alone();\n",
    "test/CMakeLists.txt": "gossamer_test(NAME core SOURCES */*_test.cpp)\n",
    "test/core/a_test.cpp": "int a() {\n",
    "docs/page.md": "# A page, `here`\n",
}
MARKED = "<!-- from core/a.cpp -->\n```cpp\n{}```\n"
CASES = [
    ("", MARKED.format("int a() {\n  int x = 1;\n\n  return x;\n}\n")),
    ("", MARKED.format("int x = 1;\n\nreturn x;\n")),
    ("", "<!-- from test/core/a_test.cpp -->\n```cpp\nint a() {\n```\n"),
    ("", MARKED.format("int a() {\n  // ...\n  return x;\n")),
    ("", "[page](docs/page.md#a-page-here) and [me](#top)\n\n# Top\n"),
    ("", "See `core/a.cpp`.\n"),
    ("without <!-- from", "```cpp\nint a() {\n```\n"),
    ("without <!-- from", "<!-- from core/a.cpp -->\n\nWords.\n\n```cpp\nint a() {\n```\n"),
    ("README.md:4: core/a.cpp does not go on with: int x = 2;", MARKED.format("int a() {\n  int x = 2;\n")),
    ("does not go on with", MARKED.format("int a() {\n  return x;\n")),
    ("does not go on with", MARKED.format("int b();\n// ...\nint a() {\n")),
    ("nothing compiles core/alone.cpp", "<!-- from core/alone.cpp -->\n```cpp\nint alone();\n```\n"),
    ("is not core/a.cpp", "<!-- all of core/a.cpp -->\n```cpp\nint b();\n```\n"),
    ("core/none.cpp does not exist", "<!-- from core/none.cpp -->\n```cpp\nint b();\n```\n"),
    ("leads to no file", "[page](docs/none.md)\n"),
    ("leads to no file", '<img src="docs/none.svg" width="100">\n'),
    ("leads to no heading", "[page](docs/page.md#there)\n"),
    ("scripts/none.sh does not exist", "    scripts/none.sh\n"),
    ("core/none.hpp does not exist", "See core/none.hpp.\n"),
]


def self_test():
    for expected, page in CASES:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder).resolve()
            for name, text in {**SELF_TEST, "README.md": page}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text, encoding="utf-8")
            problems = Checker(root).run()
            is_right = any(expected in problem for problem in problems) if expected else not problems
            if not is_right:
                print(f"check_docs: self-test: wanted '{expected}', found {problems} in:\n{page}")
                return 1
    print(f"check_docs: self-test: {len(CASES)} pages give what they must")
    return 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent)
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    checker = Checker(arguments.root.resolve())
    problems = checker.run()
    print("\n".join(problems) or f"check_docs: {checker.num_blocks} blocks of C++, "
          f"{checker.num_links} links and {checker.num_paths} paths are right")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
