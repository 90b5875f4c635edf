#!/usr/bin/env bash
# scripts/fuzz.sh [SECONDS]
#
# Fuzzes the readers of checkpoints, runs and timelines with clang's libFuzzer, under the sanitizers of addresses and
# undefined behaviour; one minute unless SECONDS is given. Needs clang++ (or CLANGXX) with libFuzzer.
# Inputs that fail are left in build/fuzz.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd -- "$root"

# shellcheck source=scripts/lib.sh
source "$root/scripts/lib.sh"
show_help "$@"

mkdir -p build/fuzz/corpus
# The least valid inputs to start from: a file with one tensor, a manifest, a status, a timeline.
header='{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"__metadata__":{"k":"v"}}'
printf "\\x$(printf %02x ${#header})\\0\\0\\0\\0\\0\\0\\0%sabcd" "$header" >build/fuzz/corpus/tensor
printf '{"version":1,"step":7,"world_size":1,"run":{"a":"b"},"files":{"rank-00000.safetensors":{"bytes":1,"sha256":"%064d"}}}' 0 \
  >build/fuzz/corpus/manifest
printf '{"state":"running","step":7,"total_steps":9,"faults":["a"]}' >build/fuzz/corpus/status
printf '{"traceEvents":[{"ph":"X","cat":"step","ts":0,"dur":9,"pid":0,"args":{"step":1}}]}' >build/fuzz/corpus/timeline
"${CLANGXX:-clang++}" -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -I . \
  test/fuzz/checkpoint_fuzz.cpp core/checkpoint/manifest.cpp core/checkpoint/open_file.cpp \
  core/checkpoint/safetensors.cpp core/checkpoint/sha256.cpp core/checkpoint/whole_file.cpp base/error.cpp \
  base/text.cpp base/yaml.cpp apps/report/chart.cpp apps/report/run_record.cpp \
  apps/report/timeline_picture.cpp -lcrypto -lyaml-cpp -o build/fuzz/checkpoint_fuzz
exec build/fuzz/checkpoint_fuzz -max_total_time="${1:-60}" -rss_limit_mb=500 -timeout=1 \
  -artifact_prefix=build/fuzz/ build/fuzz/corpus
