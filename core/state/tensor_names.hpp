#pragma once
// The names of a model's tensors. A saved state (core/checkpoint) has pieces of the names NAME and
// NAME/STATE for every parameter that is trained, and others of its own, as run/steps.

#include <span>
#include <string>

namespace gossamer {

/// Throws ConfigError where two pieces of a state may get one name:
///
/// - two tensors have the same name
/// - a tensor's name is a parameter's name, followed by a slash and more
/// - a tensor's name begins like the names of the state's own pieces
///
/// `trained` names the parameters that are trained, `others` all other tensors.
void check_tensor_names(std::span<const std::string> trained, std::span<const std::string> others);

}  // namespace gossamer
