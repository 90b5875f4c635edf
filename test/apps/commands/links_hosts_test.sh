#!/usr/bin/env bash
# links_hosts_test.sh PROGRAM: gossamer bench links between two far hosts of scripts/hosts.sh, without
# MPI. Runs inside `scripts/hosts.sh --hosts 2 --latency 40ms`.
set -uo pipefail
program=$(readlink -f "$1")
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1

fail() {
  printf 'links_hosts_test: %s\n' "$*" >&2
  tail -n 30 out >&2
  exit 1
}

# bench ARGUMENTS...: the same command on both hosts.
bench() {
  "$root/scripts/hosts.sh" each "$program" bench links --rendezvous 10.77.0.1:29500 --world-size 2 --json \
    --bytes 65536 --pings 5 --transfers 2 "$@" >out 2>&1
}

bench
code=$?
((code == 2)) || fail "ranks without a secret end with $code"
grep -q 'GOSSAMER_SECRET: is not set' out || fail "no advice for ranks without a secret"

bench --security none || fail "ranks that need no secret end with $?"
grep -q '"0-1":{"within_node":false' out || fail "no pair of two nodes"

"$program" secret -o secret >/dev/null || fail "gossamer secret ends with $?"
export GOSSAMER_SECRET_FILE=$folder/secret
bench --streams 2 || fail "ranks with a secret end with $?"
grep -q '"0-1":{"within_node":false' out || fail "no pair of two nodes"
grep -q '"streams":2,"loss_rate":' out || fail "TCP has not been asked"
grep -q '"backend":"tcp"' out || fail "the backend is missing"
