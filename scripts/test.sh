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
# shellcheck source=scripts/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
cd -- "$root"

show_help "$@"

scripts/setup.sh
scripts/build.sh release
# shellcheck source=scripts/mpi_env.sh
source scripts/mpi_env.sh
exec ctest --preset release "$@"
