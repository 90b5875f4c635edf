#!/usr/bin/env bash
# hosts_test.sh PROGRAM OPTIONS...: runs PROGRAM with one rank on each host of scripts/hosts.sh OPTIONS, over
# the backend `tcp` (test/comm/process_ranks.hpp).
set -euo pipefail
program=$1
shift
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../../.." && pwd)
GOSSAMER_TEST_STORE=$(mktemp -d)
export GOSSAMER_TEST_STORE GOSSAMER_TEST_INTERFACE=eth0
trap 'rm -rf "$GOSSAMER_TEST_STORE"' EXIT
# shellcheck disable=SC2016 # the hosts have values of their own
"$root/scripts/hosts.sh" "$@" each bash -c \
  'GOSSAMER_TEST_RANK=$GOSSAMER_HOST GOSSAMER_TEST_SIZE=$GOSSAMER_HOSTS exec "$0"' "$program"
