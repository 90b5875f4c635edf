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
# The peers get a venv of their own, build/peers (6 GB: PyTorch brings its GPU libraries along), at
# the first call. PEERS_PYTHON names a Python that has torch, decent-dp and numpy already.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib.sh"
cd -- "$root"

for argument in "$@"; do show_help "$argument"; done

python=${PEERS_PYTHON:-}
if [[ -z $python ]]; then
  venv=$root/build/peers
  python=$venv/bin/python
  if ! cmp -s scripts/lab/requirements-peers.txt "$venv/installed.txt"; then
    say "compare_peers: installing decent-dp and PyTorch into build/peers"
    "${PYTHON:-python3}" -m venv "$venv"
    "$python" -m pip install --quiet --disable-pip-version-check -r scripts/lab/requirements-peers.txt
    cp scripts/lab/requirements-peers.txt "$venv/installed.txt"
  fi
fi
[[ -x build/release/gossamer ]] || scripts/build.sh release --target gossamer
scripts/build_python.sh "$python" >&2

# shellcheck source=scripts/mpi_env.sh
source scripts/mpi_env.sh
exec "$python" scripts/lab/compare_peers.py "$@"
