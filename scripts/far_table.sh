#!/usr/bin/env bash
# scripts/far_table.sh [--rate RATE]
#
# Measures the table "Far hosts" of docs/network.md: exchanges and sums between two far hosts, for round trips of 10, 50
# and 150 ms, losses of 0, 0.1 and 1 %, and 1, 4, 16 and as many connections as the backend `tcp` finds out, beside gloo.
# Prints a JSON line for each, with bytes per second and seconds. RATE is that of every host (200mbit when not given).
# Takes about 45 minutes. Needs build/release/gossamer, and build/peers (scripts/compare_peers.sh makes it; PEER_PYTHON
# names another Python with torch and numpy).
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
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
[[ -x $PEER_PYTHON ]] || die "far_table.sh: $PEER_PYTHON is missing; scripts/compare_peers.sh makes it"
GOSSAMER_SECRET=$("$program" secret)
export GOSSAMER_SECRET

# measure LATENCY LOSS STREAMS COMMAND...: one line of the table.
measure() {
  local latency=$1 loss=$2 streams=$3 line
  shift 3
  line=$("$root/scripts/hosts.sh" --hosts 2 --rate "$rate" --latency "$latency" --loss "$loss" "$@" | grep '^{')
  printf '{"latency": "%s", "loss": "%s", "streams": "%s", "figures": %s}\n' "$latency" "$loss" "$streams" "$line"
}

for latency in 10ms 50ms 150ms; do
  for loss in 0% 0.1% 1%; do
    # Blocks take seconds at most, also where one connection loses packets.
    slow=4194304
    [[ $loss == 0% ]] || slow=524288
    count=5
    [[ $latency != 10ms ]] || count=20
    measure $latency $loss gloo mpirun "$PEER_PYTHON" "$root/scripts/peer_links.py" --bytes $slow --transfers $count
    for streams in 1 4 16 auto; do
      bytes=4194304
      [[ $streams != 1 ]] || bytes=$slow
      measure $latency $loss $streams each "$program" bench links --rendezvous host0:29500 --world-size 2 --json --sums \
        --bytes $bytes --pings 10 --transfers $count --streams $streams
    done
  done
done
