#pragma once
// The engine's messages name keys of a configuration file, which a program in Python does not have.

#include <string>

namespace gossamer::python {

/// A message in which keys of the configuration are the arguments that Python has for them.
std::string in_terms_of_python(std::string message);

}  // namespace gossamer::python
