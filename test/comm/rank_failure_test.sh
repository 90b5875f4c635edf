#!/usr/bin/env bash
# rank_failure_test.sh LAUNCHER NUMPROC_FLAG PROGRAM MODE CODE PATTERN...
# Runs PROGRAM MODE on three ranks and expects the job to end by itself with exit code CODE, for
# each extended regular expression PATTERN a line of stderr that matches it, and no process left over.
set -euo pipefail
launcher=$1 flag=$2 program=$3 mode=$4 code=$5
shift 5

# Marks the processes of this job, so that pgrep finds no others.
mark=job-$$-$RANDOM$RANDOM
errors=$(mktemp)
cleanup() {
  pkill -KILL -f "$mark" || true
  rm -f "$errors"
}
trap cleanup EXIT

fail() {
  echo "rank_failure_test: $mode: $1" >&2
  exit 1
}

ended=0
timeout -k 5 30 "$launcher" "$flag" 3 "$program" "$mode" "$mark" 2>"$errors" || ended=$?
cat "$errors" >&2
((ended == code)) || fail "exit code $ended instead of $code"
for pattern in "$@"; do
  grep -Eq -- "$pattern" "$errors" || fail "no line of stderr matches: $pattern"
done

# The launcher may return a moment before the last rank is gone.
for ((i = 0; i < 50; ++i)); do
  pgrep -f "$mark" >/dev/null || exit 0
  sleep 0.1
done
pgrep -af "$mark" >&2
fail "processes are left over"
