"""The command line: python -m gossamer --version, --selftest, or --secret FILE."""

from __future__ import annotations

import argparse
import sys

from . import __version__, _core, selftest


def main() -> int:
    """Do what the command line asks for, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m gossamer")
    parser.add_argument("--version", action="version", version=f"gossamer {__version__}")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument(
        "--selftest",
        action="store_true",
        help="train a tiny model with threads, or with the processes of a launcher, and check",
    )
    action.add_argument(
        "--secret", metavar="FILE", help="make a secret for a run, in a file that only you may read"
    )
    arguments = parser.parse_args()
    if arguments.secret is not None:
        try:
            _core.write_secret_file(arguments.secret)
        except _core.ConfigError as error:
            print(f"--secret: {error}", file=sys.stderr)
            return 2
        print(f"written to {arguments.secret}; copy it to all hosts, and set GOSSAMER_SECRET_FILE")
        return 0
    return selftest.main()


if __name__ == "__main__":
    sys.exit(main())
