#!/usr/bin/env bash
# scripts/lab/far_losses.sh TEXT FOLDER
#
# Measures the tables "What it costs" of docs/measurements/far_apart.md: what a small transformer loses when its workers exchange
# rarely, or little. TEXT is tinyshakespeare, or another text of 1.1 MB or more. Results come into FOLDER. Finished runs
# are kept, so after a stop the same command goes on. Takes about thirteen hours on two cores. Needs
# build/release/gossamer.
#
# First the grids of learning rates and of outer steps, with seed 1; then seeds 2 and 3 of what the page takes from
# them, and the rest with three seeds or one. Runs have 1600 steps, because after 400 most ways know only which letter
# follows which. Some of muon have 400: it learns faster. scripts/lab/far_tables.py FOLDER prints all of it.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=scripts/lib.sh
source "$root/scripts/lib.sh"
show_help "$@"

text=${1:-} folder=${2:-}
[[ -r $text && -n $folder ]] || die "far_losses.sh: type: scripts/lab/far_losses.sh TEXT FOLDER"
program=$root/build/release/gossamer
[[ -x $program ]] || die "far_losses.sh: $program is missing; scripts/build.sh release makes it"

# study NAME ALGORITHMS CODECS OPTIMIZERS SEEDS [SETTING...]
study() {
  local name=$1 algorithms=$2 codecs=$3 optimizers=$4 seeds=$5
  shift 5
  "$program" bench topologies "$root/configs/study_far.yaml" "base.data.path=$(realpath "$text")" \
    "study.algorithms=[$algorithms]" "study.codecs=[$codecs]" "study.optimizers=[$optimizers]" "study.seeds=[$seeds]" \
    "study.output_dir=$folder/$name" "$@"
}

# outer KIND MOMENTUM RATE EVERY [MORE]
outer() { echo "{name: outer, kind: $1, momentum: $2, lr: $3, every: $4${5:+, $5}}"; }
adamw() { echo "{name: adamw, lr: $1}"; }
muon() {
  local others='groups: [{match: "wte|wpe|head", vectors: true, optimizer: adamw, lr: 0.006}]'
  echo "{label: muon-lr-$1, name: muon, lr: $1, $others}"
}
list() {
  local IFS=,
  echo "$*"
}

# study_norm NORM|none NAME ALGORITHMS CODECS RATES SEEDS: adamw that clips by another norm than 1, or not at all.
# Labels keep the rows apart from those of the norm 1.
study_norm() {
  local norm=$1 name=$2 setting=base.train.grad_clip_norm=$1 rate optimizers=()
  [[ $norm != none ]] || setting=base.train.grad_clip=none
  for rate in $5; do optimizers+=("{label: norm-$norm-lr-$rate, name: adamw, lr: $rate}"); done
  study "$name" "$3" "$4" "$(list "${optimizers[@]}")" "$6" "$setting"
}

rates_of_adamw=$(list "$(adamw 0.003)" "$(adamw 0.006)" "$(adamw 0.012)")
low=$(list "$(adamw 0.003)" "$(adamw 0.006)")
often=$(list "$(outer diloco 0 1 1)" "$(outer diloco 0 1 2)")
all_10=$(outer diloco 0.5 0.7 10) all_40=$(outer diloco 0.5 0.7 40)
pairs_10=$(outer noloco 0.5 0.7 10) pairs_40=$(outer noloco 0.5 0.7 40)
study grid "$(list allreduce gossip "$(outer diloco 0 1 1)")" fp32 "$rates_of_adamw" 1
study grid_topk "$(list "$often" "$(outer diloco 0 1 10)")" topk "$rates_of_adamw" 1
study grid_rare "$(list "$all_10" "$pairs_10" "$all_40" "$pairs_40" local)" fp32 "$low" 1
# Outer momentum and rate, and other ways to average in pairs.
for kind in diloco noloco; do
  study "grid_$kind" "$(list "$(outer $kind 0 1 10)" "$(outer $kind 0.9 0.7 10)")" fp32 "$low" 1
done
study grid_pairs "$(list "$(outer noloco 0.5 0.5 10)" "$(outer noloco 0.7 0.5 10)" "$(outer noloco 0.5 1.0 10)" \
  "$(outer gasloc 0.5 0.7 10)" "$(outer diloco 0.5 0.7 10 'rounds: topology')")" fp32 "$(adamw 0.003)" 1
study pairs_7 "$(outer noloco 0.5 0.7 7)" fp32 "$(adamw 0.006)" 1
study topk_momentum "$(outer diloco 0.5 0.7 2)" topk "$(adamw 0.006)" 1

best=$(adamw 0.003) high=$(adamw 0.006)
study high "$(list allreduce gossip "$pairs_10")" fp32 "$high" 2,3
study low "$(list local "$all_10" "$all_40" "$pairs_40")" fp32 "$best" 2,3
study topk_1 "$(outer diloco 0 1 1)" topk "$high" 2,3
study topk_2 "$(outer diloco 0 1 2)" topk "$(adamw 0.012)" 2,3
study topk_10 "$(outer diloco 0 1 10)" topk "$low" 2,3
study coded_sums allreduce int8,int4 "$high" 1,2,3
study high_int8 "$(list gossip "$pairs_10")" int8 "$high" 1,2,3
study all_int8 "$(list "$all_10" "$all_40")" int8 "$best" 1,2,3
study pairs_40_coded "$pairs_40" int8,int4 "$best" 1,2,3
study late "$(list "$(outer diloco 0.5 0.7 40 'late: 40')" "$(outer noloco 0.5 0.7 40 'late: 40')")" int8 "$best" 1,2,3
for kind in diloco noloco; do
  study "travel_$kind" "$(list "$(outer $kind 0.5 0.7 10 'late: 2')" "$(outer $kind 0.5 0.7 10 'late: 10')" \
    "$(outer $kind 0.5 0.7 40 'late: 10')")" int8 "$best" 1
done
study travel_topk "$(outer diloco 0 1 2 'late: 2')" topk "$best" 1
study travel_pairs "$(list "$(outer noloco 0.5 0.7 10 'late: 2')" "$(outer noloco 0.5 0.7 10 'late: 10')")" fp32 \
  "$low" 1
study nearer "$(outer noloco 0 1 40)" fp32 "$best" 1
study matching "$(list "$pairs_10" "$pairs_40")" fp32 "$best" 1 'study.topologies=[random-matching]'
# Several buckets; the others have one, so that one norm clips all gradients here too.
streaming=$(outer diloco 0.5 0.7 40 'streaming: true, late: 10')
small_buckets=(base.buckets.size_mb=0.5 base.train.grad_clip=global)
study streaming "$streaming" fp32 "$best" 1,2,3 "${small_buckets[@]}"

# A rank's own gradient is noisier than the mean of all, so a norm that fits the mean clips it in most steps.
study_norm none unclipped "$(list allreduce gossip "$pairs_10" "$all_10")" fp32 "0.006 0.012" 1
study_norm none unclipped_topk "$often" topk "0.006 0.012" 1
study_norm none unclipped_all "$(outer diloco 0 1 1)" fp32 0.006 1
study_norm none unclipped_more "$(list allreduce "$pairs_10" "$all_10")" fp32 0.006 2,3
study_norm none unclipped_topk_2 "$(outer diloco 0 1 2)" topk 0.012 2,3
study_norm none unclipped_high "$(outer diloco 0 1 2)" topk 0.024 1,2,3
study_norm 2 norm_2 "$(list "$pairs_10" "$all_10")" fp32 0.006 1
study_norm 4 norm_4 "$(list "$pairs_10" "$all_10")" fp32 0.006 1,2,3
study_norm 2 norm_2_topk "$(outer diloco 0 1 2)" topk 0.012 1
study_norm 4 norm_4_topk "$(outer diloco 0 1 2)" topk "0.012 0.018 0.024" 1,2,3
study_norm 4 norm_4_topk_1 "$(outer diloco 0 1 1)" topk 0.012 1
study_norm 4 norm_4_often allreduce fp32 0.006 1,2,3
study_norm 4 norm_4_gossip gossip fp32 0.006 1
study_norm 4 norm_4_pairs_8 "$(outer noloco 0 1 8)" int8 0.006 1
# Is it the second moments? Here they are common to all ranks.
study moments '{name: gossip, share_moments: 1}' fp32 "$high" 1 'study.topologies=[complete]'
study shared_momentum '{name: gossip, share_moments: 32, share_momentum: 32}' fp32 "$high" 1
for kind in diloco noloco; do
  moments="label: moments-$kind, share_moments: 10, share_momentum: 10"
  study "moments_$kind" "$(outer $kind 0.5 0.7 10 "$moments")" fp32 "$high" 1
done
study mixing_momentum gossip fp32 '{name: adamw, lr: 0.006, mixing_momentum: 0.3}' 1

study muon_long allreduce fp32 "$(muon 0.012)" 1,2,3
study muon_topk_long "$(outer diloco 0 1 2)" topk "$(muon 0.012)" 1,2,3
study muon_rare_long "$(list "$(outer diloco 0 1 10)" "$pairs_10" "$(outer diloco 0 1 40)" "$pairs_40")" int8 \
  "$(muon 0.012)" 1,2,3
study muon_momentum_long "$(list "$all_10" "$(outer noloco 0 1 10)")" int8 "$(muon 0.012)" 1
study muon_pairs_long "$(list "$(outer noloco 0 1 7)" "$(outer noloco 0 1 8)")" int8 "$(muon 0.012)" 1,2,3
study muon_pairs_momentum "$(outer noloco 0.5 0.7 7)" int8 "$(muon 0.012)" 1
study muon_local_long local fp32 "$(muon 0.012)" 1
few=study.steps=400
rates_of_muon=$(list "$(muon 0.006)" "$(muon 0.012)" "$(muon 0.024)")
study muon_grid "$(list allreduce "$(outer diloco 0 1 40)" "$pairs_40")" fp32 "$rates_of_muon" 1 $few
study muon allreduce fp32 "$(muon 0.012)" 2,3 $few
study muon_outer "$(list "$(outer diloco 0 1 40)" "$pairs_40")" int8 "$(muon 0.012)" 1,2,3 $few
study muon_topk "$(outer diloco 0 1 2)" topk "$(muon 0.012)" 1,2,3 $few

study eight allreduce fp32 "$high" 1,2,3 study.workers=8
study eight_gossip gossip fp32,int8 "$high" 1,2,3 study.workers=8
study eight_rare "$(list "$all_40" "$pairs_40")" fp32 "$best" 1,2,3 study.workers=8
study eight_coded "$pairs_40" int8,int4 "$best" 1,2,3 study.workers=8
study eight_topk "$(outer diloco 0 1 2)" topk "$rates_of_adamw" 1 study.workers=8
study eight_topk_2 "$(outer diloco 0 1 2)" topk "$(adamw 0.012)" 2,3 study.workers=8
study eight_streaming "$streaming" fp32 "$best" 1,2,3 study.workers=8 "${small_buckets[@]}"
study eight_muon allreduce fp32 "$(muon 0.012)" 1,2,3 study.workers=8
study eight_muon_outer "$(list "$(outer diloco 0 1 10)" "$pairs_10")" int8 "$(muon 0.012)" 1,2,3 study.workers=8
study eight_muon_pairs_7 "$(outer noloco 0 1 7)" int8 "$(muon 0.012)" 1 study.workers=8
