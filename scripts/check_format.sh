#!/usr/bin/env bash
# scripts/check_format.sh [--fix]
#
# Checks that clang-format 14 would leave the C++ and CUDA files as they are; --fix lets it
# rewrite them. Files that git ignores do not count.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
cd -- "$root"

case ${1:-} in
  '') mode=(--dry-run -Werror) ;;
  --fix) mode=(-i) ;;
  *) die "check_format.sh: Usage: scripts/check_format.sh [--fix]" ;;
esac

tool=clang-format-14
has "$tool" || tool=clang-format
has "$tool" || die "check_format.sh: clang-format is not installed. Type: scripts/setup.sh --dev"
version=$("$tool" --version | sed -E 's/.*version ([0-9]+).*/\1/')
if [[ $version != 14 ]]; then
  complain "check_format.sh: this is clang-format $version. CI has 14, and the two may differ."
fi

list() {
  git ls-files -z --cached --others --exclude-standard -- '*.hpp' '*.cpp' '*.cu' '*.cuh' 2>/dev/null ||
    find . \( -name .git -o -name .venv -o -name build \) -prune -o -regex '.*\.\([hc]pp\|cuh?\)' -print0
}
files=()
while IFS= read -r -d '' file; do
  # A file deleted but not yet committed is still listed.
  [[ ! -e $file ]] || files+=("$file")
done < <(list)
if ((${#files[@]} == 0)); then
  say "check_format: there are no C++ files"
  exit 0
fi

if ! output=$(printf '%s\0' "${files[@]}" |
  xargs -0 "$tool" --style=file "${mode[@]}" 2>&1); then
  # One line a file will do, unless clang-format had something else to say.
  places=$(awk -F: '/-Wclang-format-violations/ && !seen[$1]++ { print $1 ":" $2 ": not formatted" }' <<<"$output")
  die "${places:-$output}" "" \
    "check_format: clang-format $version does not agree with these files. Type: scripts/check_format.sh --fix"
fi
say "check_format: ${#files[@]} files, all as clang-format wants them"
