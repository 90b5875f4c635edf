#include "apps/version.hpp"

#include <torch/version.h>

#include "apps/allocator.hpp"
#include "base/text.hpp"
#ifdef GOSSAMER_HAVE_MPI
#include "comm/mpi_check.hpp"
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

}  // namespace

std::string version_text() {
  return concat("gossamer ", GOSSAMER_VERSION, "\n", "LibTorch ", TORCH_VERSION, "\n", "MPI      ",
                mpi_version(), "\n", "NCCL     not built in (this build computes on the CPU)\n",
                "compiler ", GOSSAMER_COMPILER, "\n", "memory   ", allocator_name());
}

}  // namespace gossamer::apps
