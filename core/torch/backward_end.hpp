#pragma once
// Finds the end of a backward pass, also where backward passes run inside one another.

#include <functional>
#include <memory>

namespace gossamer {

/// Calls `action` once when the outermost backward pass of this thread ends. A pass that runs
/// inside another one ends without the call: hand-written activation checkpointing, for example,
/// calls backward() in the backward function of its node. If a pass throws, `action` is released
/// without a call; a weak_ptr to `action` then expires. Call this function during a backward pass.
/// Passes may be nested 60 deep. LibTorch runs deeper ones in other threads, where they count as
/// outermost.
void at_end_of_backward(std::shared_ptr<std::function<void()>> action);

}  // namespace gossamer
