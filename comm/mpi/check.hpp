#pragma once
// Turns the codes that MPI calls return into exceptions. gossamer's communicators return errors
// (MPI_ERRORS_RETURN) instead of aborting, so that the rank can say what it was doing.

#include <string>
#include <string_view>

#include <mpi.h>

#include "base/types.hpp"

namespace gossamer {

/// Throws CommError with MPI's own text unless `code` is MPI_SUCCESS.
void mpi_check(int code, std::string_view call);

MPI_Datatype mpi_type(DType dtype);

/// Whether the MPI library in use says that it takes the memory of GPUs.
bool mpi_takes_device_memory();

/// The version text of the MPI library in use, one line.
std::string mpi_library_version();

}  // namespace gossamer
