// gossamer._core: what Python needs of the engine, without LibTorch. Python's part makes a library
// for PyTorch of it.

#include "python/src/module.hpp"

#include "python/src/checkpoints.hpp"
#include "python/src/device.hpp"
#include "python/src/engine.hpp"
#include "python/src/session.hpp"

#include <exception>
#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "base/error.hpp"
#include "comm/nccl/library.hpp"
#ifdef GOSSAMER_HAVE_MPI
#include "comm/mpi/check.hpp"
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

/// The version of NCCL that a program would load here, or why there is none.
std::string nccl_version() {
  try {
    return gossamer::load_nccl()->version();
  } catch (const gossamer::ConfigError& error) {
    return error.what();
  }
}

/// As nanobind's own exceptions, with messages in terms of Python. Where errors have a context,
/// they get the attribute exit_code: a rank that a peer's failure ends leaves with the peer's code.
template <class Error>
nb::exception<Error> add_error(nb::module_& module, const char* name, PyObject* base) {
  const nb::exception<Error> type(module, name, base);
  nb::register_exception_translator(
      [](const std::exception_ptr& pointer, void* payload) {
        try {
          std::rethrow_exception(pointer);
        } catch (const Error& error) {
          const nb::handle kind(static_cast<PyObject*>(payload));
          const nb::object made = kind(gossamer::python::in_terms_of_python(error.what()));
          if constexpr (requires { error.context().code; }) {
            made.attr("exit_code") = static_cast<int>(error.context().code);
          }
          PyErr_SetObject(kind.ptr(), made.ptr());
        }
      },
      type.ptr());
  return type;
}

}  // namespace

NB_MODULE(_core, module) {
  using namespace gossamer;
  // A program that ends with an exception keeps its last frames, and what they hold.
  nb::set_leak_warnings(false);
  add_error<ConfigError>(module, "ConfigError", PyExc_ValueError);
  add_error<DataError>(module, "DataError", PyExc_ValueError);
  add_error<CheckpointError>(module, "CheckpointError", PyExc_OSError);
  const auto comm_error = add_error<CommError>(module, "CommError", PyExc_RuntimeError);
  comm_error.attr("exit_code") = static_cast<int>(ExitCode::kPeerLost);
  // After its base: the translator that was added last is asked first.
  add_error<PeerLost>(module, "PeerLost", comm_error.ptr());
  add_error<NonFiniteError>(module, "NonFiniteError", PyExc_ArithmeticError);
  python::add_session(module);
  python::add_start(module);
  python::add_device(module);
  python::add_checkpoints(module);
  python::add_engine(module);
  python::add_topologies(module);
  python::add_studies(module);
  python::add_records(module);
  module.def("version", [] { return std::string(GOSSAMER_VERSION); });
  module.def("mpi_version", &mpi_version);
  module.def("nccl_version", &nccl_version);
}
