#!/usr/bin/env bash
# scripts/quickstart.sh [key=value ...]
#
# From a fresh clone to a training run: sets up, builds, and trains with four ranks on this
# machine. The arguments are passed on to `gossamer train`, for example run.steps=50.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
cd -- "$root"

show_help "$@"

scripts/setup.sh
scripts/build.sh release --target gossamer

mpirun=mpirun
if [[ -n ${MPI_HOME:-} ]]; then
  mpirun=$MPI_HOME/bin/mpirun
fi
has "$mpirun" || die "quickstart.sh: $mpirun is not there, but mpicxx is. Install the part of your MPI
that starts programs (Debian: apt-get install openmpi-bin), or set MPI_HOME to a whole MPI."

command=("$mpirun" -n 4 build/release/gossamer train configs/quickstart.yaml "$@")
say "" "Everything is built. This trains with four ranks; to do it again, type:"
say ""
say "  cd $(printf '%q' "$root")"
say "  source scripts/mpi_env.sh"
say " $(printf ' %q' "${command[@]}")"
say ""
# shellcheck source=scripts/mpi_env.sh
source scripts/mpi_env.sh
exec "${command[@]}"
