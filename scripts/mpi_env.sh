# shellcheck shell=sh
# Source this before mpirun on a small machine:  source scripts/mpi_env.sh
#
# Open MPI by itself refuses to run as root, refuses more ranks than cores, ties each rank to a
# core, and lets a waiting rank keep its core busy. These variables change that. What you have
# set yourself stays. OMPI_ is for Open MPI, PRTE_ for the launcher of Open MPI 5.

gossamer_default() {
  eval "if [ -z \"\${$1+set}\" ]; then export $1=\"\$2\"; fi"
}

if [ "$(id -u)" = 0 ]; then
  gossamer_default OMPI_ALLOW_RUN_AS_ROOT 1
  gossamer_default OMPI_ALLOW_RUN_AS_ROOT_CONFIRM 1
  gossamer_default PRTE_ALLOW_RUN_AS_ROOT 1
  gossamer_default PRTE_ALLOW_RUN_AS_ROOT_CONFIRM 1
fi
gossamer_default OMPI_MCA_rmaps_base_oversubscribe 1
gossamer_default OMPI_MCA_mpi_yield_when_idle 1
gossamer_default OMPI_MCA_hwloc_base_binding_policy none
gossamer_default PRTE_MCA_rmaps_default_mapping_policy :oversubscribe
gossamer_default PRTE_MCA_hwloc_default_binding_policy none
unset -f gossamer_default
