#!/usr/bin/env bash
# scripts/compare_peers.sh [--turns N] [--ranks N] [--cases mlp,mlp-3mb,gpt,resnet20]
#
# A training step of gossamer against decent-dp and PyTorch's DistributedDataParallel on this
# machine: the same models, initial values, data, buckets and threads, in turns. Prints a table
# with ratios and keeps every measurement in build/compare_peers.jsonl. With ten turns it takes
# about 15 minutes; let nothing else run meanwhile.
#
# The peers get a venv of their own, build/peers (6 GB: PyTorch brings its GPU libraries along), at
# the first call. PEERS_PYTHON names a Python that has torch, decent-dp and numpy already.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/lib.sh
source "$root/scripts/lib.sh"
cd -- "$root"

for argument in "$@"; do
  case $argument in
    -h | --help)
      sed -n '2,/^set -/{/^set -/d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}"
      exit 0
      ;;
  esac
done

python=${PEERS_PYTHON:-}
if [[ -z $python ]]; then
  venv=$root/build/peers
  python=$venv/bin/python
  if ! cmp -s scripts/requirements-peers.txt "$venv/installed.txt"; then
    say "compare_peers: installing decent-dp and PyTorch into build/peers"
    "${PYTHON:-python3}" -m venv "$venv"
    "$python" -m pip install --quiet --disable-pip-version-check -r scripts/requirements-peers.txt
    cp scripts/requirements-peers.txt "$venv/installed.txt"
  fi
fi
[[ -x build/release/gossamer ]] || scripts/build.sh release --target gossamer

# shellcheck source=scripts/mpi_env.sh
source scripts/mpi_env.sh
exec "$python" scripts/compare_peers.py "$@"
