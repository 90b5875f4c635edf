#include "comm/mpi/check.hpp"

#include <array>
#include <stdexcept>

#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {

void mpi_check(int code, std::string_view call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  int kind = MPI_SUCCESS;
  MPI_Error_class(code, &kind);
  // MPI does not name the operation of the other rank.
  const std::string_view why =
      kind == MPI_ERR_TRUNCATE
          ? ": a message is larger than the block that this rank waits for. Either ranks have "
            "blocks of different sizes, or they make different calls: another rank may be leaving"
          : "";
  throw CommError(
      {.label = {.what = "communication"}},
      concat(call, ": ", std::string_view(text.data(), static_cast<std::size_t>(length)), why));
}

MPI_Datatype mpi_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return MPI_FLOAT;
    case DType::kFloat64:
      return MPI_DOUBLE;
    case DType::kBFloat16:
      return MPI_UINT16_T;
    case DType::kInt64:
      return MPI_INT64_T;
    case DType::kUInt8:
      return MPI_UINT8_T;
  }
  throw std::logic_error("mpi_type: unknown element type");
}

bool mpi_takes_device_memory() {
#if defined(MPIX_CUDA_AWARE_SUPPORT)  // Open MPI
  return MPIX_Query_cuda_support() != 0;
#elif defined(MPIX_GPU_SUPPORT_CUDA)  // MPICH and what is made of it
  int supported = 0;
  return MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &supported) == MPI_SUCCESS && supported != 0;
#else
  return false;
#endif
}

std::string mpi_library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string version(text.data(), static_cast<std::size_t>(length));
  return version.substr(0, version.find_first_of(",\n"));
}

}  // namespace gossamer
