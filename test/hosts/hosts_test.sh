#!/usr/bin/env bash
# hosts_test.sh refuses|interrupted: how scripts/hosts.sh ends.
#
#   refuses        a wrong value ends it with 1 and a message that names the option
#   interrupted    nothing stays after Ctrl-C. Exit code 77: this machine cannot make hosts
set -uo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
hosts=$root/scripts/hosts.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
  printf 'hosts_test: %s\n' "$*" >&2
  cat "$folder/out" >&2
  exit 1
}

# refuses OPTION VALUE
refuses() {
  "$hosts" "$1" "$2" true >"$folder/out" 2>&1
  local code=$?
  ((code == 1)) || fail "$1 $2: exit code $code"
  grep -qF -- "hosts.sh: $1 $2, allowed:" "$folder/out" || fail "$1 $2: another message"
}

# Prints the processes of a process namespace.
members() {
  local link
  for link in /proc/[0-9]*/ns/pid; do
    if [[ $(readlink "$link") == "$1" ]]; then basename "${link%/ns/pid}"; fi
  done
}

interrupted() {
  local job code inside
  # Job control gives the job a process group, to which a terminal would send the signal.
  set -m
  # shellcheck disable=SC2016
  "$hosts" --hosts 2 --latency 10ms bash -c 'readlink /proc/self/ns/pid >"$0" && sleep 600' "$folder/inside" \
    >"$folder/out" 2>&1 &
  job=$!
  set +m
  for _ in {1..300}; do
    [[ -s $folder/inside ]] && break
    kill -0 "$job" 2>/dev/null || break
    sleep 0.2
  done
  if [[ ! -s $folder/inside ]]; then
    wait "$job"
    code=$?
    ((code != 77)) || exit 77
    fail "the command has not started, exit code $code"
  fi
  inside=$(<"$folder/inside")
  # The script, the command and the network's process at least.
  (($(members "$inside" | wc -l) >= 3)) || fail "too few processes: $(members "$inside")"
  kill -INT -- "-$job"
  wait "$job"
  code=$?
  ((code == 130)) || fail "exit code $code"
  # The kernel ends the processes, which takes a moment.
  for _ in {1..300}; do
    [[ -n $(members "$inside") ]] || return 0
    sleep 0.2
  done
  fail "processes are left: $(members "$inside")"
}

case ${1:-} in
  refuses)
    for latency in 50 50m -1ms 10.1s 1e3ms; do refuses --latency "$latency"; done
    for loss in 1 0.1 100% -1% 1%%; do refuses --loss "$loss"; done
    for rate in 0mbit 100 100mb; do refuses --rate "$rate"; done
    refuses --hosts 100
    ;;
  interrupted) interrupted ;;
  *) fail "which test? hosts_test.sh refuses|interrupted" ;;
esac
