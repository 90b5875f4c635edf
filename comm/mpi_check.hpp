#pragma once
// MPI calls return codes; here they become exceptions. Communicators of gossamer return errors
// (MPI_ERRORS_RETURN) instead of aborting, so that the rank can say what it was doing.

#include <string>
#include <string_view>

#include <mpi.h>

#include "base/types.hpp"

namespace gossamer {

/// Throws CommError with MPI's own text unless `code` is MPI_SUCCESS.
void mpi_check(int code, std::string_view call);

MPI_Datatype mpi_type(DType dtype);

/// The MPI library in use was built to take the memory of GPUs, and says so.
bool mpi_takes_device_memory();

/// The version text of the MPI library in use, one line.
std::string mpi_library_version();

}  // namespace gossamer
