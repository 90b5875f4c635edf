#!/usr/bin/env bash
# scripts/far_steps.sh TEXT
#
# Measures the tables "Steps on far hosts" and "Uneven hosts" of docs/far_apart.md on four hosts, which share this
# machine's processors. Prints a JSON line for each cell. Takes about half an hour, and nothing else should run. TEXT is
# any text of 100 kB or more. Needs build/release/gossamer and what scripts/hosts.sh needs.
#
# The first table has milliseconds of a step of the small transformer of configs/study_far.yaml, for several ways to
# exchange, rates and round trips. Under int8 the first 16 steps of gossip, and the first averages of pairs, are plain.
# The second table has a perceptron whose ranks sleep 100 ms in a step, at 100 Mbit/s; then one rank sleeps 400 ms, or
# one host has 10 Mbit/s.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/lib.sh
source "$root/scripts/lib.sh"
show_help "$@"

text=${1:-}
[[ -r $text ]] || die "far_steps.sh: '$text' is no text that can be read"
program=$root/build/release/gossamer
[[ -x $program ]] || die "far_steps.sh: $program is missing; scripts/build.sh release makes it"
GOSSAMER_SECRET=$("$program" secret)
export GOSSAMER_SECRET
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cat > "$scratch/far.yaml" <<END
run: {threads: 1, checkpoint_every: never}
model: {name: gpt, size: mini}
data: {name: text, path: "$(realpath "$text")", context: 128, batch_size: 4}
optimizer: {name: adamw, weight_decay: 0.1}
topology: {name: one-peer-exp}
log: {every: 1000, report: false, progress: lines, level: warning}
END

# measure RATE LATENCY NAME STEPS SETTING...: one cell.
measure() {
  local rate=$1 latency=$2 name=$3 steps=$4 folder=$scratch/run
  shift 4
  rm -rf "$folder"
  "$root/scripts/hosts.sh" --rate "$rate" --latency "$latency" each "$program" train "$scratch/far.yaml" "$@" \
    "run.steps=$steps" "run.output_dir=$folder" --rendezvous host0:29500 --world-size 4 >"$scratch/log" 2>&1 ||
    die "far_steps.sh: $name at $rate and $latency has failed:" "$(tail -n 5 "$scratch/log")"
  awk -v rate="$rate" -v latency="$latency" -v name="$name" -v steps="$steps" '
    /"kind":"final"/ && match($0, /"train_s":[0-9.e+-]+/) {
      seconds = substr($0, RSTART + 10, RLENGTH - 10)
    }
    END {
      if (seconds == "") exit 1
      printf "{\"rate\": \"%s\", \"round_trip\": \"%s\", \"exchange\": \"%s\", \"step_ms\": %.1f}\n",
        rate, latency, name, 1000 * seconds / steps
    }' "$folder/metrics.jsonl"
}

# measure_uneven NAME ENGINE: all alike, a slow rank, and a slow host.
measure_uneven() {
  local name=$1 engine=$2 case
  for case in alike slow_rank slow_host; do
    local more=() slow_host=true
    [[ $case != slow_rank ]] || more=(--slow-rank 3 --slowdown 4)
    [[ $case != slow_host ]] || slow_host="$root/scripts/hosts.sh link 3 10mbit"
    # shellcheck disable=SC2016
    "$root/scripts/hosts.sh" --rate 100mbit bash -c '$0; "$@"' "$slow_host" \
      "$root/scripts/hosts.sh" each "$program" bench step --model mlp --batch-size 8 --sleep-ms 100 --bucket-mb 3 \
      --topology one-peer-exp --engine "$engine" --warmup 3 --steps 100 --rounds 1 "${more[@]}" \
      --rendezvous host0:29500 --world-size 4 >"$scratch/log" 2>&1 ||
      die "far_steps.sh: $name, $case has failed:" "$(tail -n 5 "$scratch/log")"
    awk -v case="$case" -v name="$name" '
      match($0, /"mean_ms":[0-9.]+/) {
        printf "{\"case\": \"%s\", \"exchange\": \"%s\", \"step_ms\": %s}\n",
          case, name, substr($0, RSTART + 10, RLENGTH - 10)
      }' "$scratch/log"
  done
}

for latency in 1ms 50ms; do
  for rate in 20mbit 100mbit 500mbit; do
    measure $rate $latency 'none' 40 algorithm=local
    measure $rate $latency 'all-reduce fp32' 10 algorithm=allreduce
    measure $rate $latency 'gossip fp32' 21 algorithm=gossip
    measure $rate $latency 'gossip int8' 81 algorithm=gossip comm.codec=int8
    measure $rate $latency 'outer of all fp32 every 10' 41 'algorithm={name: outer, kind: diloco, every: 10}'
    measure $rate $latency 'outer of all topk every 10' 41 \
      'algorithm={name: outer, kind: diloco, momentum: 0, lr: 1, every: 10}' comm.codec=topk
    measure $rate $latency 'outer in pairs int8 every 10' 121 'algorithm={name: outer, kind: noloco, every: 10}' comm.codec=int8
    measure $rate $latency 'outer in pairs int8 every 10, late 10' 90 \
      'algorithm={name: outer, kind: noloco, every: 10, late: 10}' comm.codec=int8
  done
done

measure_uneven 'all-reduce' allreduce
measure_uneven 'DiLoCo every 20' '{name: outer, kind: diloco, every: 20}'
measure_uneven 'DiLoCo every 20, late 20' '{name: outer, kind: diloco, every: 20, late: 20}'
measure_uneven 'pairs every 20' '{name: outer, kind: noloco, every: 20}'
measure_uneven 'pairs every 20, late 20' '{name: outer, kind: noloco, every: 20, late: 20}'
