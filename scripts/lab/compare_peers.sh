#!/usr/bin/env bash
# scripts/lab/compare_peers.sh [--turns N] [--cases CASES] [--topology NAME] [--ranks N]
# scripts/lab/compare_peers.sh [--turns N] [--cases CASES] [--topology NAME] --hosts N [--rate 500mbit]
#
# A training step of gossamer against decent-dp and PyTorch's DistributedDataParallel: the same
# models, initial values, data, buckets and threads, in turns. The first form has all ranks on this
# machine. The second form has one rank on each of N hosts with a slow network (scripts/hosts.sh), and
# adds DistributedDataParallel with gradients sent as bfloat16, and gossamer's all-reduce; gossip and
# all-reduce also with the codecs bf16 and int8.
#
# CASES are some of mlp, mlp-3mb, mlp-1mb (sizes of buckets), gpt and resnet20, with commas. The script
# prints a table with ratios and appends every measurement to build/compare_peers.jsonl. A turn of a
# case takes about 25 seconds in the first form, and 90 in the second; let nothing else run meanwhile.
#
# The peers are in the environment of the Python tests (scripts/test_python.sh --set-up), which the first call makes.
# PEERS_PYTHON names a Python that has torch, decent-dp, numpy and nanobind already.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib.sh"
cd -- "$root"

for argument in "$@"; do show_help "$argument"; done

python=${PEERS_PYTHON:-$root/build/python-venv/bin/python}
[[ -n ${PEERS_PYTHON:-} ]] || scripts/test_python.sh --set-up
[[ -x build/release/gossamer ]] || scripts/build.sh release --target gossamer
scripts/build_python.sh "$python" >&2

# shellcheck source=scripts/mpi_env.sh
source scripts/mpi_env.sh
exec "$python" scripts/lab/compare_peers.py "$@"
