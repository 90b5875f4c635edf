#!/usr/bin/env bash
# install_test.sh SOURCE BUILD examples|headers
# Installs BUILD into a folder in it and works with the installed copy alone: builds and runs the
# examples, or compiles every installed header alone.
set -euo pipefail
source_folder=$1
build_folder=$2
# Always the same, so that a cache of compilers knows what it has compiled there.
work=$build_folder/install_test_$3
rm -rf "$work"
mkdir "$work"
trap 'rm -rf "$work"' EXIT
if command -v ccache >/dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=ccache; fi

cmake --install "$build_folder" --prefix "$work/installed" >"$work/install.log"

if [[ $3 == headers ]]; then
  mkdir "$work/headers"
  (cd "$work/installed/include" && find gossamer -name '*.hpp') | sort >"$work/list"
  while read -r header; do
    printf '#include "%s"\n' "$header" >"$work/headers/${header//\//_}.cpp"
  done <"$work/list"
  cat >"$work/headers/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(headers LANGUAGES CXX)
find_package(gossamer REQUIRED)
file(GLOB sources *.cpp)
add_library(headers OBJECT ${sources})
target_link_libraries(headers PRIVATE gossamer::torch)
CMAKE
  cmake -S "$work/headers" -B "$work/headers/build" -DCMAKE_PREFIX_PATH="$work/installed" \
    -DCMAKE_BUILD_TYPE=Debug
  cmake --build "$work/headers/build" -j 2
  printf 'every one of %d headers compiles alone\n' "$(wc -l <"$work/list")"
  exit 0
fi

for example in own_model own_plug_ins plain_arrays; do
  cp -r "$source_folder/examples/$example" "$work/$example"
  # Neither optimised nor with names for a debugger: with LibTorch's headers, each doubles the compiler's time.
  cmake -S "$work/$example" -B "$work/build/$example" -DCMAKE_PREFIX_PATH="$work/installed" \
    -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0
  cmake --build "$work/build/$example"
  "$work/build/$example/$example"
done
if ldd "$work/build/plain_arrays/plain_arrays" | grep -i torch; then
  echo "install_test: plain_arrays links LibTorch" >&2
  exit 1
fi
"$work/installed/bin/gossamer" topology show ring --world-size 3

# The command line of a program with rows of its own.
own_program=$work/build/own_plug_ins/own_program
"$own_program" list algorithms | grep own_tracking
"$own_program" topology show '{every: {base: tournament, period: 2}}' --world-size 5
"$own_program" train "$source_folder/configs/quickstart.yaml" --ranks 3 algorithm=own_tracking \
  topology.name=tournament optimizer.name=bounded comm.codec=cut16 run.steps=3 \
  run.output_dir="$work/own_run"
