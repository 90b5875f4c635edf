#pragma once
// Simulations and plans for Python, as gossamer simulate and gossamer plan make them.

#include <nanobind/nanobind.h>

namespace gossamer::python {

/// Adds the functions that simulate and plan.
void add_studies(nanobind::module_& module);

}  // namespace gossamer::python
