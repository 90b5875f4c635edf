#!/usr/bin/env bash
# build_python.sh PYTHON
# Builds the Python package for an interpreter that has nanobind, into build/python/package, which
# PYTHONPATH may name.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$(realpath -s "$1")

cmake -S . -B build/python -G Ninja -DCMAKE_BUILD_TYPE=Release -DGOSSAMER_PYTHON=ON \
  -DGOSSAMER_TORCH=OFF -DGOSSAMER_TESTS=OFF -DGOSSAMER_CUDA=OFF -DGOSSAMER_WERROR=ON \
  -DPython_EXECUTABLE="$python" >/dev/null
cmake --build build/python --target gossamer_python
package=build/python/package/gossamer
rm -rf "$package"
mkdir -p "$package"
cp python/gossamer/*.py python/gossamer/*.pyi python/gossamer/py.typed build/python/python/_core*.so "$package"
