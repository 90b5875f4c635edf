#!/usr/bin/env bash
# lost_host_test.sh PROGRAM BACKEND FAULT: trains on three hosts of scripts/hosts.sh. FAULT strikes host 2:
# `unplugged` takes its link down, `stopped` stops its rank for good. The run must name rank 2, leave
# with 74, and end mpirun. Over TCP nobody ends the others' ranks for them, so each must end by itself; one
# that was stopped, when it goes on. Runs inside `scripts/hosts.sh --hosts 3`.
set -uo pipefail
program=$1 backend=$2 fault=$3
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
  printf 'lost_host_test: %s\n' "$*" >&2
  cat "$folder/out" "$folder/run/status.json" >&2
  exit 1
}

# Prints the processes that train.
trainers() {
  local exe
  for exe in /proc/[0-9]*/exe; do
    if [[ $(readlink "$exe") == "$(readlink -f "$program")" ]]; then basename "$(dirname "$exe")"; fi
  done
}

export GOSSAMER_GRACE_S=3
train=("$program" train "$root/configs/quickstart.yaml" run.steps=1000000 run.output_dir="$folder/run"
  comm.timeout_s=4 topology.name=ring log.every=5)
if [[ $backend == mpi ]]; then
  launch=(mpirun)
else
  launch=(each bash -c 'export GOSSAMER_RANK=$GOSSAMER_HOST; exec "$0" "$@"')
  train+=(--rendezvous 10.77.0.1:29500 --world-size 3)
  export GOSSAMER_SECRET='the secret of three hosts on one machine'
fi
"$root/scripts/hosts.sh" "${launch[@]}" "${train[@]}" >"$folder/out" 2>&1 &
job=$!
for _ in {1..300}; do
  sleep 0.2
  grep -qs '"step":' "$folder/run/metrics.jsonl" && break
  kill -0 "$job" 2>/dev/null || fail "the run ended early"
done
grep -qs '"step":' "$folder/run/metrics.jsonl" || fail "no step in 60 seconds"
case $fault in
  unplugged) "$root/scripts/hosts.sh" link 2 down ;;
  stopped)
    num_stopped=0
    for pid in $(trainers); do
      if grep -qzx 'OMPI_COMM_WORLD_RANK=2\|PMI_RANK=2\|GOSSAMER_RANK=2' "/proc/$pid/environ"; then
        kill -STOP "$pid"
        stopped=$pid
        ((++num_stopped))
      fi
    done
    ((num_stopped == 1)) || fail "$num_stopped processes are rank 2"
    ;;
  *) fail "no fault $fault" ;;
esac
if [[ $backend == tcp && $fault == stopped ]]; then
  for _ in {1..100}; do
    [[ $(trainers) != "$stopped" ]] || break
    sleep 0.2
  done
  [[ $(trainers) == "$stopped" ]] || fail "other ranks have not ended: $(trainers)"
  kill -CONT "$stopped"
fi
wait "$job"
code=$?
((code == 74)) || fail "exit code $code"
grep -q 'with rank 2: .*no sign of life' "$folder/out" || fail "rank 2 is not named"
grep -q '"exit_code": 74' "$folder/run/status.json" || fail "status.json"
# The stopped or unplugged rank must be gone as well.
for _ in {1..100}; do
  [[ -n $(trainers) ]] || break
  sleep 0.2
done
[[ -z $(trainers) ]] || fail "processes are left: $(trainers)"
left=$(find "$folder/run" -name '*.tmp*' -o -name '*.part*')
[[ -z $left ]] || fail "files are left: $left"
