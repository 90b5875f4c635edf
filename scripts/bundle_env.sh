# shellcheck shell=bash
# Sourced by scripts/measure_gpu.sh in a bundle (scripts/build_gpu.sh bundle); `bundle` is the
# bundle's folder. Defines `with_libraries COMMAND...`, which lets a command find the bundle's
# libraries, those of the machine's torch, and Open MPI's parts. python3 is called without it, so
# that it keeps its own libraries.

site=$("${PYTHON:-python3}" -c 'from importlib.util import find_spec; print(find_spec("torch").origin)') ||
  die "bundle: python3 has no torch. Install torch 2.11.0, or set PYTHON to a python3 that has it"
site=${site%/torch/*}
libraries=$site/torch/lib
for nvidia in "$site"/nvidia/*/lib; do libraries+=:$nvidia; done
# shellcheck disable=SC2154
libraries+=:$bundle/lib

with_libraries() {
  local mpi=$bundle/openmpi
  env LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
    OPAL_PREFIX="$mpi" OPAL_BINDIR="$mpi/bin" OPAL_LIBDIR="$bundle/lib" \
    OPAL_PKGLIBDIR="$mpi/lib/openmpi3" OPAL_PKGDATADIR="$mpi/share" OPAL_SYSCONFDIR="$mpi/etc" \
    PMIX_PREFIX="$mpi" PMIX_LIBDIR="$mpi/lib" PMIX_PKGLIBDIR="$mpi/lib/pmix" \
    PMIX_MCA_pcompress_base_silence_warning=1 \
    OMPI_MCA_plm=isolated OMPI_MCA_btl=self,vader OMPI_MCA_btl_vader_single_copy_mechanism=none \
    OMPI_MCA_oob_tcp_if_include=lo NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-lo}" "$@"
}
