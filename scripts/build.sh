#!/usr/bin/env bash
# scripts/build.sh PRESET [--target NAME] [cmake arguments...]
#
# Configures (if needed, or if arguments are given) and builds build/PRESET. Presets: release,
# debug, asan, tsan. Needs what scripts/setup.sh installs, and no root.
#
#   scripts/build.sh release
#   scripts/build.sh release --target gossamer     the program alone, without the tests
#   scripts/build.sh debug -DGOSSAMER_MPI=OFF
#
# CMAKE_BUILD_PARALLEL_LEVEL sets how many compilers run at once.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
cd -- "$root"

show_help "$@"
[[ -n ${1:-} ]] ||
  die "build.sh: which preset? Usage: scripts/build.sh release|debug|asan|tsan [--target NAME] [cmake arguments...]"
preset=$1
shift
target=()
if [[ ${1:-} == --target ]]; then
  [[ -n ${2:-} ]] || die "build.sh: --target needs a name, for example: --target gossamer"
  target=(--target "$2")
  shift 2
fi
folder=build/$preset
if ! has cmake || ! has ninja; then
  die "build.sh: cmake or ninja is not installed. Type: scripts/setup.sh"
fi

choose_libtorch

cached() { sed -n "s/^$1:[A-Z]*=//p" "$folder/CMakeCache.txt"; }

# CMake remembers the compiler and the MPI of its first run; another choice needs a fresh cache.
tools=$(printf 'CC=%s\nCXX=%s\nMPI_HOME=%s\n' "${CC:-}" "${CXX:-}" "${MPI_HOME:-}")

configure=no
fresh=()
if (($# > 0)) || [[ ! -e $folder/build.ninja || CMakePresets.json -nt $folder/build.ninja ]]; then
  configure=yes
elif [[ -n ${LIBTORCH_ROOT:-} && -n $(cached LIBTORCH_LAST_FOUND) &&
  $(cached LIBTORCH_LAST_FOUND) != "$LIBTORCH_ROOT" ]]; then
  configure=yes
fi
if [[ -e $folder/.tools && $tools != "$(<"$folder/.tools")" ]]; then
  say "build: CC, CXX or MPI_HOME has changed; $folder is configured from scratch"
  configure=yes
  fresh=(--fresh)
fi
if [[ $configure == yes ]]; then
  cmake --preset "$preset" "${fresh[@]}" "$@"
  printf '%s\n' "$tools" >"$folder/.tools"
fi
cmake --build --preset "$preset" -j "$(build_jobs)" "${target[@]}"
