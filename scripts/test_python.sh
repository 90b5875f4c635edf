#!/usr/bin/env bash
# test_python.sh [PYTEST ARGUMENTS]
# Checks and tests the Python package in python/: ruff, mypy, the stubs, and its tests, with a module
# that is built for them. The first call makes a Python environment in build/python-venv (PyTorch:
# 2.5 GB); PYTHON_WITH_TORCH names a Python that has scripts/requirements-python.txt already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { echo "==== $* ===="; }

python=${PYTHON_WITH_TORCH:-build/python-venv/bin/python}
if [[ -z ${PYTHON_WITH_TORCH:-} ]] &&
  ! cmp -s scripts/requirements-python.txt build/python-venv/installed.txt; then
  say "installing PyTorch and the tools into build/python-venv"
  "${PYTHON:-python3}" -m venv build/python-venv
  "$python" -m pip install --quiet --disable-pip-version-check -r scripts/requirements-python.txt
  cp scripts/requirements-python.txt build/python-venv/installed.txt
fi

# shellcheck source=scripts/mpi_env.sh
source scripts/mpi_env.sh
say "building the module"
scripts/build_python.sh "$python"
export PYTHONPATH=$PWD/build/python/package

say "checking"
"$python" -m ruff format --check python
"$python" -m ruff check python
"$python" -m mypy
"$python" -m nanobind.stubgen -q -m gossamer._core -o build/python/_core.pyi
"$python" -m ruff format -q build/python/_core.pyi
cmp build/python/_core.pyi python/gossamer/_core.pyi ||
  { echo "test_python: python/gossamer/_core.pyi is out of date: copy build/python/_core.pyi over it" >&2; exit 1; }

say "testing"
"$python" -m pytest -q python/tests "$@"
