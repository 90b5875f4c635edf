#pragma once
// The folder of a run for Python, as the command line program writes it.

#include <nanobind/nanobind.h>

namespace gossamer::python {

/// Adds the class RunFolder, and the functions that make its records.
void add_records(nanobind::module_& module);

}  // namespace gossamer::python
