#!/usr/bin/env bash
# rendezvous_test.sh PROGRAM: ranks on three hosts of scripts/hosts.sh meet without MPI, at a host's
# name, also when it becomes known late, and in a folder. Runs inside `scripts/hosts.sh --hosts 3`.
set -uo pipefail
program=$(readlink -f "$1")
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1

fail() {
  printf 'rendezvous_test: %s\n' "$*" >&2
  tail -n 30 out* >&2
  exit 1
}

# on_hosts ARGUMENTS...: one rank on every host, the last host first.
on_hosts() {
  local host jobs=() code=0
  for host in 2 1 0; do
    /run/agent "host$host" "$program" train "$root/configs/quickstart.yaml" run.steps=20 topology.name=ring \
      comm.timeout_s=30 "$@" >"out$host" 2>&1 &
    jobs+=($!)
    sleep 0.3
  done
  for job in "${jobs[@]}"; do wait "$job" || code=$?; done
  return "$code"
}

on_hosts --rendezvous host0:29500 --world-size 3 run.output_dir="$folder/none"
code=$?
((code == 2)) || fail "ranks without a secret end with $code"
grep -q 'GOSSAMER_SECRET: is not set' out0 || fail "no advice for ranks without a secret"

(sleep 2 && echo '10.77.0.1 late' >>/etc/hosts) &
on_hosts --rendezvous late:29500 --world-size 3 comm.security=none run.output_dir="$folder/open" ||
  fail "ranks that need no secret, and meet at a name that comes late, end with $?"

"$program" secret -o secret >/dev/null || fail "gossamer secret ends with $?"
export GOSSAMER_SECRET_FILE=$folder/secret
on_hosts --rendezvous host0:29500 --world-size 3 run.output_dir="$folder/address" ||
  fail "ranks that meet at a host end with $?"
grep -q ' 3 ranks, 20 steps' out* || fail "no world of three at a host"

mkdir meet
on_hosts --rendezvous "file:$folder/meet" --world-size 3 run.output_dir="$folder/file" comm.interface=eth0 ||
  fail "ranks that meet in a folder end with $?"
grep -q ' 3 ranks, 20 steps' out* || fail "no world of three in a folder"
