#pragma once
// The parts of the module gossamer._core that other parts need nothing of.
//
// Thread safety: the thread that holds the interpreter.

#include <string>

#include <nanobind/nanobind.h>

namespace gossamer::python {

/// A message in which keys of a configuration file, which the engine's messages name, are the
/// arguments that Python has for them.
std::string in_terms_of_python(std::string message);

/// Adds the class RunFolder, and the functions that make its records, as the program writes them.
void add_records(nanobind::module_& module);
/// Adds the class Start and the functions that lead from it to a session: how a process meets the
/// others without MPI. comm/start says where, and Python brings the store.
void add_start(nanobind::module_& module);
/// Adds the functions that simulate and plan, as gossamer simulate and gossamer plan do.
void add_studies(nanobind::module_& module);
/// Adds the functions that show the rounds of topologies.
void add_topologies(nanobind::module_& module);

}  // namespace gossamer::python
