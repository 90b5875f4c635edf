#!/usr/bin/env bash
# scripts/test_sanitized.sh asan|tsan [--only PROGRAM] [ctest arguments...]
#
# Builds the preset's tests, or those of test_PROGRAM alone, and runs them with strict sanitizers. asan: addresses,
# leaks, undefined behaviour. tsan: data races, with ranks that are threads (no MPI). LibTorch itself is not
# instrumented; tests of the command line are left out. asan watches the library; it watches the trainer, plans,
# simulations, studies and slow tests where this has been typed before, which CMake remembers:
#   scripts/build.sh asan --target gossamer_tests -DGOSSAMER_SANITIZE_ALL=ON
# Options of your own in ASAN_OPTIONS, UBSAN_OPTIONS, LSAN_OPTIONS, TSAN_OPTIONS come last and win.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
cd -- "$root"

preset=${1:-}
case $preset in
  asan | tsan) shift ;;
  *) die "test_sanitized.sh: Usage: scripts/test_sanitized.sh asan|tsan [--only PROGRAM] [ctest arguments...]" ;;
esac
target=gossamer_tests
only=()
if [[ ${1:-} == --only ]]; then
  [[ -n ${2:-} ]] || die "test_sanitized.sh: --only needs a program, for example: --only core_threads"
  target=test_$2
  only=(-R "^$2\\.")
  shift 2
fi

# add VARIABLE OPTIONS: put ours before the user's.
add() { export "$1=$2${!1:+:${!1}}"; }

add ASAN_OPTIONS detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1:check_initialization_order=1:strict_init_order=1
# Rank threads come and go by the thousand. Their copies of the stack, which tell of uses after a function
# has returned, would take half of the tests' time at their usual 11 MB for each thread.
add ASAN_OPTIONS min_uar_stack_size_log=14:max_uar_stack_size_log=14
# Freed memory waits before it is used again. The usual 256 MB cost page faults all the time.
add ASAN_OPTIONS quarantine_size_mb=64
add UBSAN_OPTIONS print_stacktrace=1:halt_on_error=1
add LSAN_OPTIONS "suppressions=$root/scripts/lsan.supp:print_suppressions=0"
add TSAN_OPTIONS "suppressions=$root/scripts/tsan.supp:print_suppressions=0"
add TSAN_OPTIONS halt_on_error=1:second_deadlock_stack=1:history_size=4
# The thread sanitizer does not see how the threads of GCC's OpenMP wait for each other. And ranks that are
# threads need none beside them: the tests of the trainer take a third less processor time.
export OMP_NUM_THREADS=1

# GCC 12's thread sanitizer does not start where the kernel spreads addresses over more bits than
# it expects. Turning the spreading off for these processes takes no root.
spread=$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || true)
if [[ -n $spread ]] && ((spread > 28)) && setarch -R true 2>/dev/null; then
  fixed=(setarch -R)
else
  fixed=()
fi

"${fixed[@]}" scripts/build.sh "$preset" --target "$target"
# shellcheck source=scripts/mpi_env.sh
source scripts/mpi_env.sh
exec "${fixed[@]}" ctest --preset "$preset" "${only[@]}" "$@"
