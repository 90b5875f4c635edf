#!/usr/bin/env bash
# test_python.sh [--build FOLDER] [--old-torch | --new-torch] [PYTEST ARGUMENTS]
#
# Checks and tests the Python package in python/: ruff, mypy, the stubs, and its tests, with a module
# that is built for them. The first call makes a Python environment in build/python-venv, which takes
# PyTorch from .venv (scripts/setup.sh --dev) and 2.3 GB of libraries from PyPI.
#
#   --set-up         make the environment, and nothing else; with one of the last two options that one's, too
#   --build FOLDER   take the module from a build that was configured with GOSSAMER_PYTHON=ON
#   --old-torch      the tests alone, with the oldest PyTorch that the package works with: 3 GB more
#   --new-torch      the tests alone, with a newer PyTorch than that of .venv: 0.8 GB more
#
# PYTHON_WITH_TORCH names a Python that has PyTorch, nanobind and scripts/requirements-python.txt already.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
cd -- "$root"
show_help "$@"

build=''
only_set_up=no
other=''
while (($# > 0)); do
  case $1 in
    --set-up) only_set_up=yes ;;
    --build)
      build=${2:?"test_python.sh: --build needs a folder"}
      shift
      ;;
    --old-torch) other=old ;;
    --new-torch) other=new ;;
    *) break ;;
  esac
  shift
done

# make_venv FOLDER REQUIREMENTS...: an environment with these pins, whose other packages are those of
# .venv. Its own packages come first.
make_venv() {
  local folder=$1 pins
  shift
  pins=$(sed -n 's/ *#.*//; /==/p' "$@")
  if [[ -e $folder/installed.txt && $pins == "$(<"$folder/installed.txt")" ]]; then
    return
  fi
  say "==== installing into $folder ===="
  .venv/bin/python -m venv --clear "$folder"
  # shellcheck disable=SC2086
  "$folder/bin/python" -I -m pip install --quiet --disable-pip-version-check --no-input --no-deps $pins
  .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    >"$(echo "$folder"/lib/python3*/site-packages)/project.pth"
  printf '%s\n' "$pins" >"$folder/installed.txt"
}

python=${PYTHON_WITH_TORCH:-build/python-venv/bin/python}
if [[ -z ${PYTHON_WITH_TORCH:-} ]]; then
  scripts/setup.sh --dev
  requirements=(scripts/requirements-{gpu,python}.txt)
  if ! libtorch_at .venv >/dev/null; then
    requirements+=(scripts/requirements-libtorch.txt)
  fi
  make_venv build/python-venv "${requirements[@]}"
fi
if [[ $other == old ]]; then
  make_venv build/python-venv-old scripts/requirements-python{-old,}.txt
elif [[ $other == new ]]; then
  make_venv build/python-venv-new scripts/requirements-python-new.txt
  # All but PyTorch is that of the other environment, whose libraries of NVIDIA are 2.3 GB.
  "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    >"$(echo build/python-venv-new/lib/python3*/site-packages)/other.pth"
fi
if [[ $only_set_up == yes ]]; then
  exit
fi

# shellcheck source=scripts/mpi_env.sh
source scripts/mpi_env.sh
say '==== building the module ===='
# shellcheck disable=SC2086
scripts/build_python.sh "$python" $build
export PYTHONPATH=$root/build/python/package

# Most tests of processes wait, and four at once keep two cores busy; with six, some reach their limits. Other versions
# of PyTorch have few such tests, and each worker imports PyTorch.
workers=4
if [[ -n $other ]]; then
  python=build/python-venv-$other/bin/python
  workers=2
else
  say '==== checking ===='
  "$python" -m ruff format --check python examples/python
  "$python" -m ruff check python examples/python
  "$python" -m mypy
  "$python" -m nanobind.stubgen -q -m gossamer._core -o build/python/_core.pyi
  "$python" -m ruff format -q build/python/_core.pyi
  cmp build/python/_core.pyi python/gossamer/_core.pyi ||
    die 'test_python: python/gossamer/_core.pyi is out of date: copy build/python/_core.pyi over it'
fi

# As the presets of CMake have it: docs/guide/starting.md says why.
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-1000}
say "==== testing with torch $("$python" -c 'import torch; print(torch.__version__)') ===="
"$python" -m pytest -q -n "$workers" python/tests "$@"
