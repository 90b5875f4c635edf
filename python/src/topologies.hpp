#pragma once
// Topologies for Python: their rounds, to look at.

#include <nanobind/nanobind.h>

namespace gossamer::python {

/// Adds the functions about topologies.
void add_topologies(nanobind::module_& module);

}  // namespace gossamer::python
