#!/usr/bin/env bash
# install_test.sh SOURCE BUILD
# Installs BUILD into a temporary folder, builds the README's example against the installed copy,
# away from the source tree, and runs it.
set -euo pipefail
source_folder=$1
build_folder=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build_folder" --prefix "$work/installed" >"$work/install.log"
cp -r "$source_folder/examples/own_model" "$work/example"
cmake -S "$work/example" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/installed" \
  -DCMAKE_BUILD_TYPE=Release
cmake --build "$work/build"
"$work/build/own_model"
"$work/installed/bin/gossamer" topology show ring --world-size 3
