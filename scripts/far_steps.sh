#!/usr/bin/env bash
# scripts/far_steps.sh TEXT
#
# Measures the table "Steps on far hosts" of docs/far_apart.md: milliseconds of a step of the small transformer of
# configs/study_far.yaml on four hosts, for several ways to exchange, rates and round trips. The last step of a
# measurement waits for the last exchange. Under int8 the first 16 steps of gossip, and the first averages of pairs, are
# plain. TEXT is any text of 100 kB or
# more. Prints a JSON line for each cell. Takes about half an hour; the hosts share this machine's processors, so nothing
# else should run. Needs build/release/gossamer and what scripts/hosts.sh needs.
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
