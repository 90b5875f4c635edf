#pragma once
// The names of a model's tensors. A saved state (core/checkpoint) has pieces of the names NAME and
// NAME/STATE for every parameter that is trained, and others of its own, as run/steps.

#include <span>
#include <string>

namespace gossamer {

/// Throws ConfigError where two pieces of a state may get one name: a tensor's name comes twice, is
/// that of a parameter with a slash and more behind it, or begins as those of the state's own
/// pieces do. `trained` names the parameters that are trained, `others` all other tensors.
void check_tensor_names(std::span<const std::string> trained, std::span<const std::string> others);

}  // namespace gossamer
