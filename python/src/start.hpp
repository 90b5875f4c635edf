#pragma once
// How a process of Python meets the others without MPI: comm/start says where, and Python brings
// the store.
//
// Thread safety: the thread that holds the interpreter.

#include <nanobind/nanobind.h>

namespace gossamer::python {

/// Adds the class Start and the functions that lead from it to a session.
void add_start(nanobind::module_& module);

}  // namespace gossamer::python
