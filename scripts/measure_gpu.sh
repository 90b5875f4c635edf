#!/usr/bin/env bash
# scripts/measure_gpu.sh FOLDER [PART...]
#
# Everything that docs/gpu.md has a figure for, on this machine's GPU: build first (scripts/build.sh
# release, or scripts/build_gpu.sh). Each part leaves its output in FOLDER/PART.log; a part that
# fails does not stop the others, and the last lines say which did.
#
#   tests       ctest -L gpu; several NCCL ranks on one GPU print what communicators cost
#   sanitizer   the same tests under compute-sanitizer
#   golden      recorded runs replayed on the GPU; only if GOLDEN names a folder of cases
#   kernels     bench kernel: accum_adamw and others, float32 and bfloat16
#   peers       the same work by PyTorch (scripts/gpu_peer.py)
#   train       a gpt of 124 million parameters: gossamer with 1 and 2 ranks, with and without a
#               graph, and PyTorch with fused AdamW, compiled or not
#   profile     ncu: bandwidth of the sweep kernel
#
# Of the training runs, FOLDER gets the metrics (one_bf16_false.jsonl, ...) and no models.
#
# BATCH sets the gpt's batch size (32), STEPS its steps (60), BUILD the build folder.
set -uo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/lib.sh
source "$root/scripts/lib.sh"
cd -- "$root" || exit
# shellcheck source=scripts/mpi_env.sh
source "$root/scripts/mpi_env.sh"
case ${1:-} in
  '' | -h | --help)
    sed -n '2,/^set -/{/^set -/d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}"
    exit $((${#1} > 0 ? 0 : 1))
    ;;
esac
folder=$1
shift
parts=("$@")
((${#parts[@]} > 0)) || parts=(tests sanitizer golden kernels peers train profile)
build=${BUILD:-build/release}
[[ -n ${BUILD:-} || -x $build/gossamer || ! -x build/gpu/gossamer ]] || build=build/gpu
gossamer=$build/gossamer
batch=${BATCH:-32}
steps=${STEPS:-60}
[[ -x $gossamer ]] || die "measure_gpu.sh: $gossamer is not there. Type: scripts/build.sh release"
# As the program itself does: streams that wait for each other need queues of their own.
export CUDA_DEVICE_MAX_CONNECTIONS=32
nvidia-smi -L >/dev/null 2>&1 || die "measure_gpu.sh: this machine has no GPU, or no driver for it"
mkdir -p "$folder"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv >"$folder/gpu.txt"
python=$(command -v "${PYTHON:-python3}")

# Prints a command, then what it says.
try() {
  printf '\n$ %s\n' "$*"
  "$@"
}

tests() {
  local failed=0
  try ctest --test-dir "$build" -L gpu --output-on-failure --timeout 300 || failed=1
  # Their output is of interest when they pass, too.
  try ctest --test-dir "$build" -R nccl_ranks -V || failed=1
  return $failed
}

sanitizer() {
  local failed=0 tool
  for tool in memcheck racecheck; do
    # With a time limit: under a tool that lets kernels run one after another only, streams that wait
    # for each other would do so for ever. Calls that fail on purpose are the tests' own business.
    local options=(--tool "$tool" --error-exitcode 1)
    [[ $tool != memcheck ]] || options+=(--report-api-errors no)
    try timeout 600 compute-sanitizer "${options[@]}" "$build/test/test_gpu" \
      --gtest_filter='Kernels.*:CudaStream*:Pipeline.AveragesGradients' || failed=1
  done
  return $failed
}

golden() {
  local failed=0 recorded count=0
  for recorded in "${GOLDEN:?names no folder of recorded runs}"/*/; do
    count=$((count + 1))
    try "$gossamer" replay "$recorded" --device cuda || failed=1
  done
  ((count > 0)) || failed=1
  return $failed
}

kernels() {
  local failed=0 optimizer parameters
  for parameters in float32 bfloat16; do
    for optimizer in accum_adamw adamw sgd; do
      try "$gossamer" bench kernel --device cuda --optimizer "$optimizer" --buckets 200 \
        --parameters "$parameters" --json || failed=1
    done
  done
  # As one would with many small parameters, and with buckets that the cache holds.
  try "$gossamer" bench kernel --device cuda --bucket-mib 1 --buckets 400 --json || failed=1
  return $failed
}

peers() { try "$python" scripts/gpu_peer.py sweep; }

train() {
  local failed=0 runs text
  # Models of half a gigabyte each, which the figures do not need.
  runs=$(mktemp -d)
  text=$runs/text.txt
  # Any text does: what is measured is time.
  cat -- core/*.?pp core/*/*.?pp optim/*.?pp comm/*.?pp apps/*/*.?pp docs/*.md >"$text"
  local config=configs/gpt_124m.yaml
  local common=("run.steps=$steps" "data.path=$text" "data.batch_size=$batch" train.grad_clip=none
    log.eval_every=0)
  local precision graph
  for precision in bf16 bf16_parameters; do
    for graph in false true; do
      try "$gossamer" train "$config" "${common[@]}" "device.precision=$precision" \
        "device.graph=$graph" "run.output_dir=$runs/one_${precision}_$graph" --overwrite --ranks 1 || failed=1
    done
    if ! has mpirun; then
      say "two ranks on one GPU: left out, there is no mpirun"
      continue
    fi
    try mpirun -n 2 "$gossamer" train "$config" "${common[@]}" "device.precision=$precision" \
      device.share=true "run.output_dir=$runs/two_$precision" --overwrite || failed=1
  done
  local metrics
  for metrics in "$runs"/*/metrics.jsonl; do
    [[ ! -e $metrics ]] || cp -- "$metrics" "$folder/$(basename "${metrics%/*}").jsonl"
  done
  rm -rf -- "$runs"
  try "$python" scripts/gpu_peer.py train --batch "$batch" || failed=1
  try "$python" scripts/gpu_peer.py train --batch "$batch" --compile || failed=1
  return $failed
}

profile() {
  try ncu --clock-control none --kernel-name regex:sweep_kernel --launch-skip 400 --launch-count 8 \
    --metrics gpu__time_duration.sum,dram__bytes.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,launch__registers_per_thread,sm__warps_active.avg.pct_of_peak_sustained_active \
    "$gossamer" bench kernel --device cuda --buckets 200 --cycles 1
}

failed=()
for part in "${parts[@]}"; do
  case $part in
    tests | sanitizer | golden | kernels | peers | train | profile) ;;
    *) die "measure_gpu.sh: there is no part $part" ;;
  esac
  if [[ $part == golden && -z ${GOLDEN:-} ]]; then
    say "golden: left out, GOLDEN names no folder"
    continue
  fi
  say "$part"
  "$part" >"$folder/$part.log" 2>&1 || failed+=("$part")
done
if ((${#failed[@]} > 0)); then
  say "failed: ${failed[*]}; see $folder/*.log"
  exit 1
fi
say "all parts ran; see $folder/*.log"
