#!/usr/bin/env bash
# scripts/launch/mpirun.sh [OPTIONS OF mpirun] PROGRAM...
#
# Runs mpirun, and ends it if it outlives the ranks of this host. When a host is lost, gossamer's ranks
# name it and leave with exit code 74. mpirun may then wait for ever for the lost host; Open MPI 4.1
# does. This script ends mpirun when no rank has been left on this host for GOSSAMER_GRACE_S seconds
# (30 when not given), and exits with 74. Otherwise the script exits with mpirun's exit code. MPIEXEC
# names another launcher. The ranks get no standard input.
#
#   scripts/launch/mpirun.sh -n 4 --host a:2,b:2 build/release/gossamer train configs/quickstart.yaml
#
# At least one rank must run on the host where this script runs. If no rank ever starts there, the
# script waits for mpirun as long as mpirun runs.
set -uo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib.sh"
show_help "$@"

grace=${GOSSAMER_GRACE_S:-30}
[[ $grace =~ ^[0-9]+$ ]] || die "launch/mpirun.sh: GOSSAMER_GRACE_S is $grace, allowed: whole seconds"
grace=$((10#$grace))

# A process group of its own: a Ctrl-C then reaches mpirun once, through the trap.
set -m
"${MPIEXEC:-mpirun}" "$@" </dev/null &
job=$!
set +m
for signal in INT TERM USR1 USR2 HUP; do
  # shellcheck disable=SC2064
  trap "kill -$signal $job 2>/dev/null" "$signal"
done

# Prints all processes that come from `job`, itself included.
descendants() {
  # A process may end meanwhile, and awk stops at a file that is gone; cat goes on.
  cat /proc/[0-9]*/status 2>/dev/null | awk -v root="$job" '
    $1 == "Pid:" { pid = $2 }
    $1 == "PPid:" { parent[pid] = $2 }
    END {
      for (pid in parent) {
        for (p = pid; p != root && p in parent && p > 1;) p = parent[p]
        if (p == root) print pid
      }
    }'
}

# Open MPI, MPICH and others tell a rank its number in one of these variables. A variable that is set
# here already says nothing.
marks=''
for name in OMPI_COMM_WORLD_RANK PMI_RANK PMIX_RANK; do
  [[ -v $name ]] || marks+="${marks:+|}$name"
done

# True if a rank of this job lives on this host.
has_ranks() {
  local pid
  for pid in $(descendants); do
    if grep -qzE "^(${marks:-none})=" "/proc/$pid/environ" 2>/dev/null; then
      return 0
    fi
  done
  return 1
}

has_started=no alone_s=0
for ((turn = 1; ; ++turn)); do
  # A trap runs at once only while bash itself waits.
  sleep 0.2 &
  wait $!
  kill -0 "$job" 2>/dev/null || break
  ((turn % 5 == 0)) || continue
  if has_ranks; then
    has_started=yes alone_s=0
  elif [[ $has_started == yes ]] && ((++alone_s > grace)); then
    complain "launch/mpirun.sh: mpirun still runs $grace seconds after its last rank on this host has ended, so a host is lost; mpirun is ended now"
    # shellcheck disable=SC2046
    kill -KILL "$job" $(descendants) 2>/dev/null
    exit 74
  fi
done
wait "$job"
