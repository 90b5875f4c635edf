// gossamer._core: what Python needs of the engine, without LibTorch. Python's part makes a library
// for PyTorch of it.

#include "python/src/engine.hpp"
#include "python/src/session.hpp"
#include "python/src/topologies.hpp"

#include <nanobind/nanobind.h>

#include "base/error.hpp"

namespace nb = nanobind;

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
}
