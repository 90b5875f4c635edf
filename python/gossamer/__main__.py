"""The command line: python -m gossamer --version, or --selftest."""

from __future__ import annotations

import argparse
import sys

from . import __version__, selftest


def main() -> int:
    """Do what the command line asks for, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m gossamer")
    parser.add_argument("--version", action="version", version=f"gossamer {__version__}")
    parser.add_argument(
        "--selftest",
        action="store_true",
        required=True,
        help="train a tiny model with threads, or with the processes of mpirun, and check the ends",
    )
    parser.parse_args()
    return selftest.main()


if __name__ == "__main__":
    sys.exit(main())
