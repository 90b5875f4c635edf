#!/usr/bin/env bash
# build_python.sh PYTHON [FOLDER]
#
# Builds the Python package for an interpreter that has nanobind, into build/python/package, which
# PYTHONPATH may name. FOLDER: a build that was configured with GOSSAMER_PYTHON=ON for that
# interpreter; without one, the module gets a build of its own, without LibTorch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$(realpath -s "$1")
folder=${2:-build/python}

if [[ -z ${2:-} ]]; then
  cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGOSSAMER_PYTHON=ON \
    -DGOSSAMER_TORCH=OFF -DGOSSAMER_TESTS=OFF -DGOSSAMER_CUDA=OFF -DGOSSAMER_WERROR=ON \
    -DPython_EXECUTABLE="$python" >/dev/null
fi
cmake --build "$folder" --target gossamer_python
package=build/python/package/gossamer
rm -rf "$package"
mkdir -p "$package"
cp -r python/gossamer/. "$package"
cp "$folder"/python/_core*.so "$package"
