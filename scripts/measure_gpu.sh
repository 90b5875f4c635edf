#!/usr/bin/env bash
# scripts/measure_gpu.sh [--dry-run] FOLDER [PART...]
#
# Everything that docs/guide/gpu.md has a figure for, on this machine's GPU. It works from a build
# (scripts/build.sh release, or scripts/build_gpu.sh) and from an unpacked bundle
# (scripts/build_gpu.sh bundle). Each part takes at most 9 minutes. A command that takes longer than
# its limit shows the stacks of its threads and is ended; it does not stop the others. Each part
# leaves its output in FOLDER/PART.log and a line for each command in FOLDER/table.txt.
#
#   first       driver, versions, one run on text, tests of streams
#   tests       tests of kernels, of the pipeline, of LibTorch's part, and of the program
#   python      tests of the Python package on the GPU, if PYTHON (python3) has it and pytest, and
#               the sources are here; training of a gpt with it
#   nccl        tests of NCCL; several ranks on one GPU print what communicators cost
#   sanitizer   tests under compute-sanitizer
#   golden      recorded runs replayed on the GPU; only if GOLDEN names a folder of cases
#   kernels     bench kernel: accum_adamw and others, float32 and bfloat16; small buckets, one or
#               several in a launch
#   codecs      codecs in at most 3 minutes: bits against processors; bench kernel with each; a gpt
#               of 124 million parameters on two ranks that share the GPU, with each
#   peers       the same work by PyTorch (scripts/lab/gpu_peer.py), and its training of a gpt,
#               also by two processes with DDP's ways to exchange
#   train       a gpt of 124 million parameters on one rank, with and without a graph
#   two         the same on two ranks that share the GPU
#   profile     ncu: bandwidth of the sweep kernel
#
# Of the training runs, FOLDER gets the metrics (one_bf16_false.jsonl, ...) and no models.
#
# BATCH sets the gpt's batch size (32), STEPS its steps (60), BUILD the build folder, BUDGET the seconds
# of a part (540). --dry-run prints the commands with their limits in seconds, and runs nothing.
set -uo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/mpi_env.sh
source "$root/scripts/mpi_env.sh"
dry=no
if [[ ${1:-} == --dry-run ]]; then
  dry=yes
  shift
fi
case ${1:-} in
  '' | -h | --help)
    sed -n '2,/^set -/{/^set -/d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}"
    exit $((${#1} > 0 ? 0 : 1))
    ;;
esac
all_parts=(first tests python nccl sanitizer golden kernels codecs peers train two profile)
folder=$1
shift
parts=("$@")
((${#parts[@]} > 0)) || parts=("${all_parts[@]}")
for part in "${parts[@]}"; do
  [[ " ${all_parts[*]} " == *" $part "* ]] || die "measure_gpu.sh: there is no part $part"
done

python=$(command -v "${PYTHON:-python3}")
if [[ -x $root/bin/gossamer ]]; then
  bundle=$root
  # shellcheck source=scripts/bundle_env.sh
  [[ $dry == yes ]] || source "$root/scripts/bundle_env.sh"
  gossamer=$bundle/bin/gossamer
  test_programs=$bundle/bin
  mpirun=$bundle/openmpi/bin/mpirun
else
  build=${BUILD:-$root/build/release}
  [[ -n ${BUILD:-} || -x $build/gossamer || ! -x $root/build/gpu/gossamer ]] || build=$root/build/gpu
  gossamer=$build/gossamer
  test_programs=$build/test
  mpirun=$(command -v mpirun || true)
  with_libraries() { "$@"; }
  [[ $dry == yes || -x $gossamer ]] || die "measure_gpu.sh: $gossamer is not there. Type: scripts/build.sh release"
fi
export PYTHONUNBUFFERED=1
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
if [[ $dry == no ]]; then
  nvidia-smi -L >/dev/null 2>&1 || die "measure_gpu.sh: this machine has no GPU, or no driver for it"
  mkdir -p "$folder"
  folder=$(cd -- "$folder" && pwd)
fi
cd -- "$root" || exit

# A part's seconds. The last 30 are for stacks.
budget=${BUDGET:-540}
failures=0

# all_below PID: it, and the processes that it has started.
all_below() {
  local child
  echo "$1"
  for child in $(pgrep -P "$1"); do all_below "$child"; done
}

# Where the threads of a process are, as far as this machine can tell.
show_stacks() {
  local debugger thread
  printf '\nprocess %s: %s\n' "$1" "$(tr '\0' ' ' <"/proc/$1/cmdline")"
  for debugger in cuda-gdb gdb; do
    has "$debugger" || continue
    timeout 25 "$debugger" -p "$1" -batch -ex 'set pagination off' -ex 'thread apply all bt 16' && return
  done
  for thread in "/proc/$1"/task/*; do
    printf '%s: waits in %s\n' "$(cat "$thread/comm")" "$(cat "$thread/wchan" 2>/dev/null)"
  done
}

# limited SECONDS NAME COMMAND...: in a process group of its own.
limited() {
  local seconds=$1 name=$2 begin=$SECONDS pid code process
  shift 2
  if [[ $dry == yes ]]; then
    printf '%4d s  %s: %s\n' "$seconds" "$name" "$*"
    return
  fi
  local left=$((budget - (SECONDS - part_began) - 30))
  if ((left < 5)); then
    printf '%-34s left out: the part has no time left\n' "$name" >>"$folder/table.txt"
    failures=$((failures + 1))
    return
  fi
  ((seconds <= left)) || seconds=$left
  printf '\n$ %s\n' "$*"
  set -m
  ("$@") >"$work/out" 2>&1 &
  pid=$!
  set +m
  while kill -0 "$pid" 2>/dev/null && ((SECONDS - begin < seconds)); do sleep 0.2; done
  if kill -0 "$pid" 2>/dev/null; then
    for process in $(all_below "$pid"); do
      [[ $(readlink "/proc/$process/exe") != */bash ]] && show_stacks "$process" >>"$work/out" 2>&1
    done
    kill -TERM -- "-$pid" 2>/dev/null
    sleep 2
    kill -KILL -- "-$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
    code='too long'
  else
    wait "$pid"
    code=$?
  fi
  [[ $code == 0 ]] || failures=$((failures + 1))
  cat -- "$work/out"
  printf '%-34s %-8s %4d s\n' "$name" "$code" $((SECONDS - begin)) | tee -a "$folder/table.txt"
}
# As `limited`, with the libraries of a bundle.
ours() { limited "$1" "$2" with_libraries "${@:3}"; }
# on_ranks SECONDS NAME RANKS COMMAND...
on_ranks() {
  if [[ -z $mpirun ]]; then
    say "$2: left out, there is no mpirun"
    return
  fi
  ours "$1" "$2" "$mpirun" -x LD_LIBRARY_PATH -n "${@:3}"
}

first() {
  limited 20 driver nvidia-smi
  limited 40 torch "$python" -c 'import torch; print(torch.__version__, torch.version.cuda)'
  ours 30 version "$gossamer" --version
  ours 60 streams "$test_programs/test_gpu" --gtest_filter='CudaStream*'
  ours 90 one_run "$gossamer" train configs/gpt_124m.yaml "data.path=$work/text.txt" model.layers=2 \
    model.d_model=128 model.heads=4 data.context=64 data.batch_size=4 run.steps=40 log.eval_every=0 \
    "run.output_dir=$work/first" --overwrite --ranks 1
}

tests() {
  local name
  ours 100 kernels "$test_programs/test_gpu" --gtest_filter='Kernels.*'
  for name in StagedExchangesConform 'FollowsTheRecursion*' AveragesGradients GoesOnWithoutARankThatDies \
    EndsWhenAGradientIsNotFinite; do
    ours 30 "pipeline_${name%\*}" "$test_programs/test_gpu" --gtest_filter="Pipeline.$name"
  done
  ours 100 torch_tests "$test_programs/test_gpu_torch"
  for name in TrainsLikeProcessors IsSharedByTwoRanksUnderMpirun; do
    [[ -n $mpirun || $name != *Mpirun ]] || continue
    ours 50 "gpu_$name" env MPIEXEC="$mpirun" "$python" test/apps/commands/cli_gpu_test.py "$gossamer" "Gpu.$name"
  done
  ours 60 gpu_survival env GOSSAMER_TEST_DEVICE=cuda "$python" test/apps/commands/cli_survival_test.py "$gossamer" \
    Survival.GoesOnWhenARankIsKilled
}

python() {
  if [[ ! -d $root/python/tests ]] || { [[ $dry == no ]] && ! "$python" -c 'import gossamer, pytest' 2>/dev/null; }; then
    say "python: left out; it needs the sources, the package and pytest" | tee -a "$folder/table.txt"
    return
  fi
  limited 100 python_gpu env GOSSAMER_TEST_DEVICE=cuda "$python" -m pytest -q -p no:cacheprovider python/tests/test_gpu.py
  limited 200 python_cuda env GOSSAMER_TEST_DEVICE=cuda "$python" -m pytest -q -p no:cacheprovider python/tests --ignore=python/tests/test_gpu.py
  limited 60 python_train "$python" scripts/lab/gpu_peer.py train --batch "${BATCH:-32}" --gossamer
  limited 60 python_peer_train "$python" scripts/lab/gpu_peer.py train --batch "${BATCH:-32}"
}

nccl() {
  ours 90 nccl_library "$test_programs/test_gpu" --gtest_filter='Nccl*'
  on_ranks 120 nccl_2 2 "$test_programs/test_nccl_ranks"
  on_ranks 120 nccl_4 4 "$test_programs/test_nccl_ranks"
}

sanitizer() {
  local filter='Kernels.C*:Kernels.S*:CudaStream*'
  # Calls that fail on purpose are the tests' own business.
  ours 120 memcheck compute-sanitizer --tool memcheck --error-exitcode 9 --report-api-errors no \
    "$test_programs/test_gpu" --gtest_filter="$filter"
  ours 120 racecheck compute-sanitizer --tool racecheck --error-exitcode 9 "$test_programs/test_gpu" \
    --gtest_filter='Kernels.S*'
  ours 90 initcheck compute-sanitizer --tool initcheck --error-exitcode 9 "$test_programs/test_gpu" \
    --gtest_filter='Kernels.C*:Kernels.S*'
  ours 150 memcheck_sweep compute-sanitizer --tool memcheck --error-exitcode 9 "$test_programs/test_gpu" \
    --gtest_filter=Kernels.UpdateLikeProcessors
}

golden() {
  local recorded
  for recorded in "${GOLDEN:-}"/*/; do
    [[ ! -d $recorded ]] || ours 19 "golden_$(basename "$recorded")" "$gossamer" replay "$recorded" --device cuda
  done
}

kernels() {
  local optimizer parameters together
  for parameters in float32 bfloat16; do
    for optimizer in accum_adamw adamw sgd; do
      ours 70 "kernel_${optimizer}_$parameters" "$gossamer" bench kernel --device cuda --optimizer "$optimizer" \
        --buckets 200 --parameters "$parameters" --json
    done
  done
  # Small buckets, as with many small parameters: each by a launch of its own, and 16 by one.
  for together in 1 16; do
    ours 30 "kernel_small_$together" "$gossamer" bench kernel --device cuda --bucket-mib 1 --buckets 200 \
      --per-launch "$together" --json
  done
}

codecs() {
  local codec pass algorithm command STEPS=24 BATCH=16
  ours 30 codec_bits "$test_programs/test_gpu" --gtest_filter='CodecKernels*:Pipeline.SendsEncodedBlocks'
  for codec in fp32 bf16 fp16 int8 int4; do
    ours 4 "kernel_$codec" "$gossamer" bench kernel --device cuda --codec "$codec" --buckets 60 --cycles 3 --json
  done
  for codec in int8 topk; do
    for pass in encode feedback; do
      ours 3 "kernel_${codec}_$pass" "$gossamer" bench kernel --device cuda --codec "$codec" --pass "$pass" --buckets 60 \
        --cycles 3 --json
    done
  done
  # Until the 16th step int8 and int4 have no grid, so the last steps count.
  for algorithm in gossip allreduce; do
    for codec in fp32 bf16 int8 int4; do
      gpt "${algorithm}_$codec" bf16 device.share=true "algorithm=$algorithm" "comm.codec=$codec" log.every=4
      on_ranks 13 "gpt_${algorithm}_$codec" 2 "${command[@]}"
    done
  done
  gpt outer_topk bf16 device.share=true 'algorithm={name: outer, kind: diloco, momentum: 0, lr: 1, every: 1}' \
    comm.codec=topk log.every=4
  on_ranks 13 gpt_outer_topk 2 "${command[@]}"
  keep_metrics
}

peers() {
  limited 120 peer_sweep "$python" scripts/lab/gpu_peer.py sweep
  limited 120 peer_train "$python" scripts/lab/gpu_peer.py train --batch "${BATCH:-32}"
  limited 100 peer_ddp "$python" scripts/lab/gpu_peer.py ddp --batch 16
  limited 160 peer_train_compiled "$python" scripts/lab/gpu_peer.py train --batch "${BATCH:-32}" --compile
}

# gpt NAME PRECISION OVERRIDE...: a command of training, without its launcher.
gpt() {
  command=("$gossamer" train configs/gpt_124m.yaml "data.path=$work/text.txt" "run.steps=${STEPS:-60}"
    "data.batch_size=${BATCH:-32}" train.grad_clip=none log.eval_every=0 "device.precision=$2"
    "run.output_dir=$work/$1" --overwrite "${@:3}")
}

# Models of half a gigabyte each stay behind: the figures do not need them.
keep_metrics() {
  local metrics
  for metrics in "$work"/*/metrics.jsonl; do
    [[ ! -e $metrics ]] || cp -- "$metrics" "$folder/$(basename "${metrics%/*}").jsonl"
  done
}

train() {
  local precision graph command
  for precision in bf16 bf16_parameters; do
    for graph in false true; do
      gpt "one_${precision}_$graph" "$precision" "device.graph=$graph" --ranks 1
      ours 120 "gpt_one_${precision}_$graph" "${command[@]}"
    done
  done
  keep_metrics
}

two() {
  local precision command
  for precision in bf16 bf16_parameters; do
    gpt "two_$precision" "$precision" device.share=true
    on_ranks 180 "gpt_two_$precision" 2 "${command[@]}"
  done
  gpt two_outer_int8 bf16 device.share=true 'algorithm={name: outer, kind: diloco, every: 10}' comm.codec=int8
  on_ranks 140 gpt_two_outer_int8 2 "${command[@]}"
  keep_metrics
}

profile() {
  ours 240 ncu ncu --clock-control none --kernel-name regex:sweep_kernel --launch-skip 100 --launch-count 6 \
    --metrics gpu__time_duration.sum,dram__bytes.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,launch__registers_per_thread,sm__warps_active.avg.pct_of_peak_sustained_active \
    "$gossamer" bench kernel --device cuda --buckets 60 --cycles 1
}

# Any text does: what is measured is time.
if [[ -e $root/data/text.txt ]]; then
  cp -- "$root/data/text.txt" "$work/text.txt"
else
  cat -- core/*/*.?pp optim/*.?pp comm/*.?pp comm/*/*.?pp apps/*/*.?pp docs/*/*.md >"$work/text.txt"
fi
failed=()
for part in "${parts[@]}"; do
  if [[ $part == golden && -z ${GOLDEN:-} ]]; then
    say "golden: left out, GOLDEN names no folder"
    continue
  fi
  say "$part"
  part_began=$SECONDS
  failures=0
  if [[ $dry == yes ]]; then
    "$part"
    continue
  fi
  printf '%s\n' "-- $part" >>"$folder/table.txt"
  "$part" >"$folder/$part.log" 2>&1
  ((failures == 0)) || failed+=("$part")
done
[[ $dry == no ]] || exit 0
cat -- "$folder/table.txt"
if ((${#failed[@]} > 0)); then
  say "failed: ${failed[*]}; see $folder/*.log"
  exit 1
fi
say "all parts ran; see $folder/*.log"
