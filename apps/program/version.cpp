#include "apps/program/version.hpp"

#include <string_view>

#include <torch/version.h>

#include "apps/program/allocator.hpp"
#include "base/text.hpp"
#ifdef GOSSAMER_HAVE_MPI
#include "comm/mpi/check.hpp"
#endif

namespace gossamer::apps {
namespace {

std::string mpi_version() {
#ifdef GOSSAMER_HAVE_MPI
  return mpi_library_version();
#else
  return "not built in";
#endif
}

std::string_view nccl_text() {
#ifdef GOSSAMER_HAVE_CUDA
  return "loaded when a GPU is asked for";
#else
  return "not in this build (no CUDA)";
#endif
}

}  // namespace

std::string version_text() {
  return concat("gossamer ", GOSSAMER_VERSION, "\n", "LibTorch ", TORCH_VERSION, "\n", "MPI      ",
                mpi_version(), "\n", "NCCL     ", nccl_text(), "\n", "compiler ", GOSSAMER_COMPILER,
                "\n", "memory   ", allocator_name());
}

}  // namespace gossamer::apps
