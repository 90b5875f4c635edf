#!/usr/bin/env bash
# scripts/test.sh [ctest arguments...]
#
# Sets up, builds the release preset, and runs its tests. The exit code and the last lines are
# ctest's.
#
#   scripts/test.sh                   all tests
#   scripts/test.sh -R consensus      those whose name holds "consensus"
#   scripts/test.sh -N                only list them
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd -- "$root"

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,/^set -/{/^set -/d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}"
  exit 0
fi

scripts/setup.sh
scripts/build.sh release
# shellcheck source=scripts/mpi_env.sh
source scripts/mpi_env.sh
exec ctest --preset release "$@"
