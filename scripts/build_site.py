#!/usr/bin/env python3
"""Builds the site of the documents: build/site/html/index.html.

    .venv/bin/python scripts/build_site.py

README.md becomes the first page. A link from a page to a source file becomes plain text, since the site has
the pages alone. mkdocstrings makes the Python reference, and doxygen, where it is installed, the C++ interface
in api/. mkdocs ends with an error at a link or an anchor that leads nowhere, and at a name that is not in the
package. Exit code 77: mkdocs is not installed (scripts/setup.sh --dev does that).
"""
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ROOT / "build/site/pages"
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def place_of(source):
    """Where a file of the project lies among the pages; None: it is no part of the site."""
    if source == ROOT / "README.md":
        return PAGES / "index.md"
    if source == ROOT / "CONTRIBUTING.md":
        return PAGES / "CONTRIBUTING.md"
    if source == ROOT / "docs/design/decisions":
        return PAGES / "design/decisions/README.md"
    if ROOT / "docs" in source.parents and source.is_file():
        return PAGES / source.relative_to(ROOT / "docs")
    return None


def moved(source, match):
    text, target = match[1], match[2]
    if re.match(r"[a-z]+:|#", target):
        return match[0]
    name, mark, anchor = target.partition("#")
    file = (source.parent / name).resolve()
    if not file.exists():
        return match[0]  # mkdocs reports it
    place = place_of(file)
    if place is None:
        return text
    up = [".."] * (len(place_of(source).relative_to(PAGES).parts) - 1)
    return f"[{text}]({'/'.join([*up, str(place.relative_to(PAGES))])}{mark}{anchor})"


def copy_page(source):
    lines, is_code = [], False
    for line in source.read_text(encoding="utf-8").split("\n"):
        is_code ^= line.lstrip().startswith("```")
        # A block of four spaces is code; so is everything between fences.
        keeps = is_code or re.match(r" {4}(?! *- )", line)
        lines.append(line if keeps else LINK.sub(lambda match: moved(source, match), line))
    place_of(source).parent.mkdir(parents=True, exist_ok=True)
    place_of(source).write_text("\n".join(lines), encoding="utf-8")


def main():
    missing = [name for name in ("mkdocs", "material", "mkdocstrings_handlers")
               if importlib.util.find_spec(name) is None]
    if missing:
        print(f"build_site: {', '.join(missing)}: not installed; scripts/setup.sh --dev installs it")
        return 77
    shutil.rmtree(ROOT / "build/site", ignore_errors=True)
    for source in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*"))]:
        if source.suffix == ".md":
            copy_page(source)
        elif source.is_file():
            place_of(source).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, place_of(source))
    if shutil.which("doxygen"):
        subprocess.run(["doxygen", "scripts/Doxyfile"], cwd=ROOT, check=True)
        with (PAGES / "index.md").open("a", encoding="utf-8") as index:
            index.write("\n## C++ interface\n\n[All classes and functions](api/index.html)\n")
    else:
        print("build_site: without the C++ interface, because doxygen is not installed")
    code = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict"],
                          cwd=ROOT,
                          env={**os.environ, "NO_MKDOCS_2_WARNING": "true"}).returncode
    if code == 0:
        print(f"build_site: {ROOT / 'build/site/html/index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
