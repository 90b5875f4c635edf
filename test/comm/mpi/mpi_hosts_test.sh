#!/usr/bin/env bash
# mpi_hosts_test.sh MPIEXEC PROGRAM HOSTS MAPPING EXPECTED [PATTERN]
# Runs PROGRAM on HOSTS (as a:3,b:1), dealt out by MAPPING, and expects the line EXPECTED, which has
# `place on the host/ranks on the host:node size` for every rank, and a line of stderr that matches
# PATTERN. The hosts are this machine: Open MPI's remote shell is replaced by one that runs the
# command here under another host name. Exit code 77, skipped, where that cannot be done.
set -euo pipefail
mpiexec=$1 program=$2 hosts=$3 mapping=$4 expected=$5 pattern=${6:-}

"$mpiexec" --version 2>/dev/null | grep -q 'Open MPI\|OpenRTE' || exit 77
rename=(unshare --uts)
"${rename[@]}" true 2>/dev/null || rename=(unshare --map-root-user --uts)
"${rename[@]}" true 2>/dev/null || exit 77

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/shell" <<END
#!/usr/bin/env bash
host=\$1
shift
exec ${rename[*]} bash -c 'hostname "\$0" && eval "\$*"' "\$host" "\$@"
END
chmod +x "$folder/shell"

export OMPI_MCA_plm_rsh_agent=$folder/shell PRTE_MCA_plm_ssh_agent=$folder/shell
count=$(tr ',' '\n' <<<"$hosts" | awk -F: '{ sum += $2 } END { print sum }')
timeout -k 5 60 "$mpiexec" --host "$hosts" --map-by "$mapping" -n "$count" "$program" \
  >"$folder/out" 2>"$folder/err" || {
  cat "$folder/out" "$folder/err" >&2
  exit 1
}
cat "$folder/out"
if ! grep -qxF -- "$expected" "$folder/out"; then
  echo "mpi_hosts_test: expected $expected" >&2
  exit 1
fi
if [[ -n $pattern ]] && ! grep -Eq -- "$pattern" "$folder/err"; then
  cat "$folder/err" >&2
  echo "mpi_hosts_test: no line of stderr matches: $pattern" >&2
  exit 1
fi
