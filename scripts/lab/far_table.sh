#!/usr/bin/env bash
# scripts/lab/far_table.sh [--rate RATE]
#
# Measures the table "Far hosts" of docs/measurements/network.md: exchanges and sums between two far hosts, for round trips of 10, 50
# and 150 ms, losses of 0, 0.1 and 1 %, and 1, 4, 16 and as many connections as the backend `tcp` finds out, beside gloo.
# Prints a JSON line for each, with bytes per second and seconds. RATE is that of every host (200mbit when not given).
# Takes about half an hour. Needs build/release/gossamer, and build/peers (scripts/lab/compare_peers.sh makes it; PEER_PYTHON
# names another Python with torch and numpy).
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=scripts/lib.sh
source "$root/scripts/lib.sh"
show_help "$@"

rate=200mbit
while (($# > 0)); do
  case $1 in
    --rate) rate=${2:?} && shift 2 ;;
    *) die "far_table.sh: I do not know '$1'" ;;
  esac
done
export PEER_PYTHON=${PEER_PYTHON:-$root/build/peers/bin/python}
program=$root/build/release/gossamer
[[ -x $program ]] || die "far_table.sh: $program is missing; scripts/build.sh release makes it"
[[ -x $PEER_PYTHON ]] || die "far_table.sh: $PEER_PYTHON is missing; scripts/lab/compare_peers.sh makes it"
GOSSAMER_SECRET=$("$program" secret)
export GOSSAMER_SECRET

# measure LATENCY LOSS STREAMS COMMAND...: one line of the table.
measure() {
  local latency=$1 loss=$2 streams=$3 line
  shift 3
  line=$("$root/scripts/hosts.sh" --hosts 2 --rate "$rate" --latency "$latency" --loss "$loss" "$@" | grep '^{')
  printf '{"latency": "%s", "loss": "%s", "streams": "%s", "figures": %s}\n' "$latency" "$loss" "$streams" "$line"
}

# bytes_for LOSS STREAMS: of a block. It takes seconds at most, also where few connections lose packets.
bytes_for() {
  case $1,$2 in
    0%,* | *,auto) echo 4194304 ;;
    *,gloo | *,1) echo 524288 ;;
    *) echo 1048576 ;;
  esac
}

for latency in 10ms 50ms 150ms; do
  count=3
  [[ $latency != 10ms ]] || count=10
  for loss in 0% 0.1% 1%; do
    for streams in gloo 1 4 16 auto; do
      bytes=$(bytes_for $loss $streams)
      if [[ $streams == gloo ]]; then
        measure $latency $loss gloo mpirun "$PEER_PYTHON" "$root/scripts/lab/peer_links.py" --bytes "$bytes" --transfers $count
      else
        measure $latency $loss $streams each "$program" bench links --rendezvous host0:29500 --world-size 2 --json \
          --sums --bytes "$bytes" --pings 10 --transfers $count --streams $streams
      fi
    done
  done
done
