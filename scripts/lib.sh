# shellcheck shell=bash
# What the other scripts share; sourced by them. Sets `root`, the project's folder.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)

# Each argument is a line.
say() { printf '%s\n' "$@"; }
complain() { printf '%s\n' "$@" >&2; }
die() {
  complain "$@"
  exit 1
}

# show_help "$@": if the first argument asks for help, prints the opening comment of the script that
# calls, and ends it.
show_help() {
  if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,/^set -/{/^set -/d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[1]}"
    exit 0
  fi
}

has() { command -v "$1" >/dev/null 2>&1; }

# at_least 3.25 3.31.6: is the second version the same as the first, or newer?
at_least() { [[ $(printf '%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]; }

# Is there a compiler for the kernels of GPUs?
has_nvcc() {
  local nvcc
  nvcc=${CUDACXX:-$(command -v nvcc)} || return 1
  at_least 12.5 "$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')"
}

# Prints the LibTorch folder that an entry of a search path means: the entry itself, torch below
# it, the folder of its share/cmake, or the torch of a Python environment. The same places as in
# cmake/FindLibTorch.cmake.
libtorch_at() {
  local folder
  for folder in "$1" "$1/torch" "$1/../.." "$1"/lib/python3*/site-packages/torch; do
    if [[ -e $folder/lib/libtorch_cpu.so && -d $folder/include/torch ]]; then
      (cd -- "$folder" && pwd)
      return 0
    fi
  done
  return 1
}

# Prints the LibTorch that the user brings along: LIBTORCH_ROOT, else CMAKE_PREFIX_PATH.
users_libtorch() {
  local entry entries
  if [[ -n ${LIBTORCH_ROOT:-} ]]; then
    libtorch_at "$LIBTORCH_ROOT"
    return
  fi
  IFS=: read -r -a entries <<<"${CMAKE_PREFIX_PATH:-}"
  for entry in "${entries[@]}"; do
    if [[ -n $entry ]] && libtorch_at "$entry"; then
      return 0
    fi
  done
  return 1
}

# Exports LIBTORCH_ROOT: the user's LibTorch, else the one in .venv. Says nothing if there is none.
choose_libtorch() {
  local folder
  if folder=$(users_libtorch) || folder=$(libtorch_at "$root/.venv"); then
    export LIBTORCH_ROOT=$folder
  fi
}

# Does MPI_HOME name an MPI?
mpi_home_is_good() { [[ -e $MPI_HOME/include/mpi.h || -x $MPI_HOME/bin/mpicxx ]]; }

# How many compilers to run at once: one per core, but 2 GB of memory for each, because a file
# that includes all of LibTorch takes 1.4 GB. CMAKE_BUILD_PARALLEL_LEVEL overrules it.
build_jobs() {
  local cores memory
  if [[ -n ${CMAKE_BUILD_PARALLEL_LEVEL:-} ]]; then
    say "$CMAKE_BUILD_PARALLEL_LEVEL"
    return
  fi
  cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
  memory=$(awk '/^MemAvailable:/ { print int($2 / 2000000) }' /proc/meminfo 2>/dev/null || true)
  if [[ -n $memory ]] && ((memory < cores)); then
    cores=$((memory > 0 ? memory : 1))
  fi
  say "$cores"
}
