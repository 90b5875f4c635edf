#!/usr/bin/env bash
# measure_gpu_test.sh: scripts/measure_gpu.sh in a bundle whose programs are made up, with a driver
# that is made up. It keeps to the time of a part, shows the stacks of what hangs, goes on, and leaves
# no model behind.
set -uo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
fail() {
  printf 'measure_gpu_test: %s\n' "$*" >&2
  exit 1
}

"$root/scripts/measure_gpu.sh" --dry-run "$work/out" >"$work/plan" || fail "--dry-run ends with $?"
[[ ! -e $work/out ]] || fail "--dry-run has made a folder"
# Parts that take as many commands as there are cases have no sum.
awk '/^[a-z]+$/ { sum = 0 } / s  / { sum += $1; if (sum > 510) exit 1 }' "$work/plan" ||
  fail "the limits of a part come to more than 510 seconds"
(($(grep -c ' s  ' "$work/plan") > 30)) || fail "--dry-run prints few commands"

# Files that the commands name, and modules beside them that these files import.
"$root/scripts/build_gpu.sh" bundled >"$work/bundled"
named=$(grep -oE '(configs|scripts|test)/[a-z0-9_/]+\.(py|yaml|sh)' "$work/plan" | sort -u)
(($(wc -w <<<"$named") > 3)) || fail "the commands name few files: $named"
for file in $named; do
  imported=
  if [[ $file == *.py ]]; then
    imported=$(sed -nE 's/^(from|import) ([a-z0-9_]+).*/\2/p' "$root/$file" | sort -u)
  fi
  for module in $imported; do
    module=${file%/*}/$module.py
    [[ ! -e $root/$module ]] || grep -qx "$module" "$work/bundled" || fail "a bundle lacks $module, which $file imports"
  done
  grep -qx "$file" "$work/bundled" || fail "a bundle lacks $file"
done

bundle=$work/bundle
mkdir -p "$bundle"/{bin,lib,configs,data,scripts,openmpi/bin} "$work/path"
cp -- "$root"/scripts/{measure_gpu.sh,bundle_env.sh,lib.sh,mpi_env.sh} "$bundle/scripts/"
echo text >"$bundle/data/text.txt"
# A python3 with a torch, as far as the script asks.
cat >"$work/path/python3" <<END
#!/bin/sh
echo "$work/site/torch/__init__.py"
END
printf '#!/bin/sh\nexit 0\n' >"$work/path/nvidia-smi"
# The program hangs in its tests of streams, and its training leaves a model and metrics.
cat >"$bundle/bin/gossamer" <<'END'
#!/bin/sh
for word; do
  case $word in
    run.output_dir=*)
      folder=${word#run.output_dir=}
      mkdir -p "$folder"
      echo '{}' >"$folder/metrics.jsonl"
      echo weights >"$folder/model.safetensors"
      ;;
  esac
done
echo "libraries: $LD_LIBRARY_PATH"
END
cp -- /bin/sleep "$bundle/bin/sleep"
printf '#!/bin/sh\n"%s" 1000\n' "$bundle/bin/sleep" >"$bundle/bin/test_gpu"
chmod +x "$work"/path/* "$bundle"/bin/*

PATH=$work/path:$PATH BUDGET=36 "$bundle/scripts/measure_gpu.sh" "$work/out" first train >"$work/said" 2>&1
code=$?
((code == 1)) || fail "a part with a hang ends with $code: $(cat "$work/said")"
grep -q "^streams  *too long" "$work/out/table.txt" || fail "no line says that the streams hang: $(cat "$work/said")"
grep -q "^process [0-9]*: $bundle/bin/sleep 1000" "$work/out/first.log" || fail "the stacks of the hang are not shown"
grep -q "^gpt_one_bf16_true  *0" "$work/out/table.txt" || fail "a part after the hang did not run"
grep -q "libraries: .*$bundle/lib" "$work/out/train.log" || fail "programs do not find the bundle's libraries"
grep -q '^failed: first;' "$work/said" || fail "the last line names other parts"
[[ -e $work/out/one_bf16_true.jsonl ]] || fail "there are no metrics"
! compgen -G "$work/out/*/model.safetensors" >/dev/null || fail "a model is left"
! pgrep -f "$bundle/bin/sleep" >/dev/null || fail "what hung goes on"
