#!/usr/bin/env bash
# mpi_failure_test.sh MPIEXEC NUMPROC_FLAG PROGRAM MODE CODE PATTERN
# Runs PROGRAM MODE on three ranks and expects the job to end by itself with exit code CODE, a line
# of stderr that matches the extended regular expression PATTERN, and no process left over.
set -euo pipefail
mpiexec=$1 flag=$2 program=$3 mode=$4 code=$5 pattern=${6:-}

# Marks the processes of this job, so that pgrep finds no others.
mark=job-$$-$RANDOM$RANDOM
errors=$(mktemp)
cleanup() {
  pkill -KILL -f "$mark" || true
  rm -f "$errors"
}
trap cleanup EXIT

fail() {
  echo "mpi_failure_test: $mode: $1" >&2
  exit 1
}

ended=0
timeout -k 5 30 "$mpiexec" "$flag" 3 "$program" "$mode" "$mark" 2>"$errors" || ended=$?
cat "$errors" >&2
((ended == code)) || fail "exit code $ended instead of $code"
[[ -z $pattern ]] || grep -Eq -- "$pattern" "$errors" || fail "no line of stderr matches: $pattern"

# The launcher may return a moment before the last rank is gone.
for ((i = 0; i < 50; ++i)); do
  pgrep -f "$mark" >/dev/null || exit 0
  sleep 0.1
done
pgrep -af "$mark" >&2
fail "processes are left over"
