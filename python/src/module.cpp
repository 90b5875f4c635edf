// gossamer._core: what Python needs of the engine, without LibTorch. Python's part makes a library
// for PyTorch of it.

#include "python/src/engine.hpp"
#include "python/src/session.hpp"
#include "python/src/topologies.hpp"

#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "base/error.hpp"
#ifdef GOSSAMER_HAVE_MPI
#include "comm/mpi_check.hpp"
#endif

namespace nb = nanobind;

namespace {

std::string mpi_version() {
#ifdef GOSSAMER_HAVE_MPI
  return gossamer::mpi_library_version();
#else
  return "";
#endif
}

}  // namespace

NB_MODULE(_core, module) {
  using namespace gossamer;
  nb::exception<ConfigError>(module, "ConfigError", PyExc_ValueError);
  nb::exception<DataError>(module, "DataError", PyExc_ValueError);
  nb::exception<CheckpointError>(module, "CheckpointError", PyExc_OSError);
  nb::exception<CommError>(module, "CommError", PyExc_RuntimeError);
  nb::exception<NonFiniteError>(module, "NonFiniteError", PyExc_ArithmeticError);
  python::add_session(module);
  python::add_engine(module);
  python::add_topologies(module);
  module.def("version", [] { return std::string(GOSSAMER_VERSION); });
  module.def("mpi_version", &mpi_version);
}
