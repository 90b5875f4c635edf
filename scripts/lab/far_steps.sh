#!/usr/bin/env bash
# scripts/lab/far_steps.sh TEXT [PATTERN]
#
# Measures the tables "Steps on far hosts" and "Uneven hosts" of docs/measurements/far_apart.md on four hosts, which share this
# machine's processors. Prints a JSON line for each cell. Takes about an hour, and nothing else should run. TEXT is
# any text of 100 kB or more. PATTERN, an extended regular expression, measures only the exchanges whose name it
# matches, as '^muon'. Needs build/release/gossamer and what scripts/hosts.sh needs.
#
# The first table has milliseconds of a step of the small transformer of configs/study_far.yaml, for several ways to
# exchange, rates and round trips. The second half of a run counts: the first has the plain rounds of int8 and TCP's slow
# start. One more step follows, because the last one waits for what travels, and for an evaluation.
# The second table has a perceptron of 11.7 MB whose ranks sleep 25 ms in a step, at 500 Mbit/s; then one rank sleeps
# 100 ms, or one host has 50 Mbit/s. Averages that may travel let a rank run ahead by a period, a fifteenth of the run.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=scripts/lib.sh
source "$root/scripts/lib.sh"
show_help "$@"

text=${1:-} pattern=${2:-}
[[ -r $text ]] || die "far_steps.sh: '$text' is no text that can be read"
code=0
[[ '' =~ $pattern ]] || code=$?
((code < 2)) || die "far_steps.sh: '$pattern' is no regular expression"
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
log: {report: false, progress: lines, level: warning}
END

# Counts the wanted cells, so that a pattern that names none is told.
num_cells=0
is_wanted() { [[ $1 =~ $pattern ]] && num_cells=$((num_cells + 1)); }

# measure RATE LATENCY NAME STEPS SETTING...: one cell; STEPS in each part of the run.
measure() {
  local rate=$1 latency=$2 name=$3 steps=$4 folder=$scratch/run
  is_wanted "$name" || return 0
  shift 4
  rm -rf "$folder"
  "$root/scripts/hosts.sh" --rate "$rate" --latency "$latency" each "$program" train "$scratch/far.yaml" "$@" \
    "run.steps=$((2 * steps + 1))" "log.every=$steps" "run.output_dir=$folder" --rendezvous host0:29500 --world-size 4 \
    >"$scratch/log" 2>&1 ||
    die "far_steps.sh: $name at $rate and $latency has failed:" "$(tail -n 5 "$scratch/log")"
  awk -v rate="$rate" -v latency="$latency" -v name="$name" -v steps="$steps" '
    /"kind":"step"/ && match($0, /"elapsed_s":[0-9.e+-]+/) { seconds[++num] = substr($0, RSTART + 12, RLENGTH - 12) }
    END {
      if (num < 2) exit 1
      printf "{\"rate\": \"%s\", \"round_trip\": \"%s\", \"exchange\": \"%s\", \"step_ms\": %.1f}\n",
        rate, latency, name, 1000 * (seconds[2] - seconds[1]) / steps
    }' "$folder/metrics.jsonl" || die "far_steps.sh: $name at $rate and $latency has no two records"
}

# measure_uneven NAME ENGINE STEPS: all alike, a slow rank, and a slow host.
measure_uneven() {
  local name=$1 engine=$2 steps=$3 what
  is_wanted "$name" || return 0
  for what in alike slow_rank slow_host; do
    local more=()
    [[ $what != slow_rank ]] || more=(--slow-rank 3 --slowdown 4)
    # shellcheck disable=SC2016
    "$root/scripts/hosts.sh" --rate 500mbit bash -c '[[ $0 != slow_host ]] || "$1" link 3 50mbit && "$@"' "$what" \
      "$root/scripts/hosts.sh" each "$program" bench step --model mlp --batch-size 8 --sleep-ms 25 --bucket-mb 3 \
      --topology one-peer-exp --engine "$engine" --warmup 3 --steps "$steps" --rounds 1 "${more[@]}" \
      --rendezvous host0:29500 --world-size 4 >"$scratch/log" 2>&1 ||
      die "far_steps.sh: $name, $what has failed:" "$(tail -n 5 "$scratch/log")"
    awk -v what="$what" -v name="$name" '
      match($0, /"mean_ms":[0-9.]+/) {
        printf "{\"hosts\": \"%s\", \"exchange\": \"%s\", \"step_ms\": %s}\n",
          what, name, substr($0, RSTART + 10, RLENGTH - 10)
        found = 1
      }
      END { exit !found }' "$scratch/log" || die "far_steps.sh: $name, $what has no result"
  done
}

# measure_far RATE LATENCY
measure_far() {
  local all='name: outer, kind: diloco' pairs='name: outer, kind: noloco' mean='momentum: 0, lr: 1'
  local muon='optimizer={name: muon, groups: [{match: "wte|wpe|head", vectors: true, optimizer: adamw}]}'
  measure "$@" 'none' 30 algorithm=local
  measure "$@" 'all-reduce, fp32' 6 algorithm=allreduce
  measure "$@" 'all-reduce, int8' 12 algorithm=allreduce comm.codec=int8
  measure "$@" 'all-reduce, int4' 12 algorithm=allreduce comm.codec=int4
  measure "$@" 'gossip, fp32' 8 algorithm=gossip
  measure "$@" 'gossip, int8' 32 algorithm=gossip comm.codec=int8
  measure "$@" 'outer of all every step, topk' 30 "algorithm={$all, every: 1, $mean}" comm.codec=topk
  measure "$@" 'outer of all every 2, topk' 40 "algorithm={$all, every: 2, $mean}" comm.codec=topk
  measure "$@" 'outer of all every 10, fp32' 20 "algorithm={$all, every: 10}"
  measure "$@" 'outer of all every 10, topk' 30 "algorithm={$all, every: 10, $mean}" comm.codec=topk
  measure "$@" 'outer of all every 40, fp32' 80 "algorithm={$all, every: 40}"
  measure "$@" 'streaming of all every 40, late 10, fp32' 80 \
    "algorithm={$all, every: 40, streaming: true, late: 10}" buckets.size_mb=0.5
  measure "$@" 'outer in pairs every 10, int8' 80 "algorithm={$pairs, every: 10}" comm.codec=int8
  measure "$@" 'outer in pairs every 10, int8, late 10' 80 "algorithm={$pairs, every: 10, late: 10}" comm.codec=int8
  measure "$@" 'outer in pairs every 40, int8' 80 "algorithm={$pairs, every: 40}" comm.codec=int8
  measure "$@" 'outer in pairs every 40, int4' 80 "algorithm={$pairs, every: 40}" comm.codec=int4
  measure "$@" 'muon, none' 30 algorithm=local "$muon"
  measure "$@" 'muon, all-reduce, fp32' 6 algorithm=allreduce "$muon"
  measure "$@" 'muon, outer of all every 2, topk' 40 "algorithm={$all, every: 2, $mean}" comm.codec=topk "$muon"
  measure "$@" 'muon, outer of all every 40, int8' 80 "algorithm={$all, every: 40, $mean}" comm.codec=int8 "$muon"
  measure "$@" 'muon, outer in pairs every 40, int8' 80 "algorithm={$pairs, every: 40}" comm.codec=int8 "$muon"
}

# At 500mbit all hosts together may send more than hosts.sh advises, and all-reduce does: 105 ms where the wire has 84.
for latency in 1ms 50ms; do
  for rate in 20mbit 100mbit 500mbit; do
    measure_far "$rate" "$latency"
  done
done

measure_uneven 'all-reduce' allreduce 20
measure_uneven 'outer of all every 20' '{name: outer, kind: diloco, every: 20}' 300
measure_uneven 'outer of all every 20, late 20' '{name: outer, kind: diloco, every: 20, late: 20}' 300
measure_uneven 'outer in pairs every 20' '{name: outer, kind: noloco, every: 20}' 300
measure_uneven 'outer in pairs every 20, late 20' '{name: outer, kind: noloco, every: 20, late: 20}' 300
((num_cells > 0)) || die "far_steps.sh: no exchange has a name that matches '$pattern'"
