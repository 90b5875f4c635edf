#!/usr/bin/env bash
# scripts/fuzz.sh [SECONDS]
#
# Fuzzes the readers of checkpoints, runs and timelines, and then the reader of a peer's frames (backend tcp), with
# clang's libFuzzer, under the sanitizers of addresses and undefined behaviour; each for one minute unless SECONDS is
# given. Needs clang++ (or CLANGXX) with libFuzzer. Inputs that fail are left in build/fuzz.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
cd -- "$root"

show_help "$@"
seconds=${1:-60}

# fuzz NAME ARGUMENTS...: builds test/fuzz/NAME_fuzz.cpp with these sources and libraries, and runs it.
fuzz() {
  local name=$1
  shift
  "${CLANGXX:-clang++}" -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -I . \
    "test/fuzz/${name}_fuzz.cpp" base/error.cpp base/text.cpp base/whole_text.cpp "$@" -o "build/fuzz/${name}_fuzz"
  "build/fuzz/${name}_fuzz" -max_total_time="$seconds" -rss_limit_mb=500 -timeout=1 \
    -artifact_prefix=build/fuzz/ "build/fuzz/$name"
}

mkdir -p build/fuzz/checkpoint build/fuzz/frames
# The least valid inputs to start from: a file with one tensor, a manifest, a status, a timeline.
header='{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"__metadata__":{"k":"v"}}'
printf "\\x$(printf %02x ${#header})\\0\\0\\0\\0\\0\\0\\0%sabcd" "$header" >build/fuzz/checkpoint/tensor
printf '{"version":1,"step":7,"world_size":1,"run":{"a":"b"},"files":{"rank-00000.safetensors":{"bytes":1,"sha256":"%064d"}}}' 0 \
  >build/fuzz/checkpoint/manifest
printf '{"state":"running","step":7,"total_steps":9,"faults":["a"]}' >build/fuzz/checkpoint/status
printf '{"traceEvents":[{"ph":"X","cat":"step","ts":0,"dur":9,"pid":0,"args":{"step":1}}]}' >build/fuzz/checkpoint/timeline
fuzz checkpoint core/checkpoint/manifest.cpp core/checkpoint/open_file.cpp core/checkpoint/safetensors.cpp \
  core/checkpoint/sha256.cpp core/checkpoint/whole_file.cpp base/yaml.cpp base/markup.cpp apps/records/chart.cpp \
  apps/records/run_record.cpp apps/records/timeline_picture.cpp -lcrypto -lyaml-cpp

# The piece of a message of one element: header (kind 3, number 1, length 4) and payload.
zeros() { head -c "$1" /dev/zero; }
{ printf 'GSMR\1\3' && zeros 10 && printf '\1' && zeros 23 && printf '\4' && zeros 15 && printf 'abcd'; } \
  >build/fuzz/frames/piece
fuzz frames comm/hmac.cpp comm/tcp/frame.cpp comm/tcp/peer_messages.cpp comm/tcp/process_memory.cpp -lcrypto
