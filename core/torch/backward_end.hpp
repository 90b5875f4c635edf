#pragma once
// The end of a backward pass, where backward passes may run inside each other.

#include <functional>
#include <memory>

namespace gossamer {

/// Calls `action` once when the outermost backward pass of this thread ends. A backward pass that
/// runs inside another one (hand-written activation checkpointing calls backward() in the backward
/// function of its node) ends without calling it. Where a pass throws, `action` is released without
/// a call: a weak_ptr to it tells. To be called during a backward pass. Passes may be nested 60
/// deep: LibTorch runs deeper ones in other threads, where they count as outermost.
void at_end_of_backward(std::shared_ptr<std::function<void()>> action);

}  // namespace gossamer
