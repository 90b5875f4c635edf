#pragma once
// The stream of a model of Python. On a GPU it is the one on which PyTorch computes, and memory
// comes from PyTorch's allocator. That takes the interpreter's lock: no worker allocates.

#include <cstdint>
#include <memory>
#include <optional>

#include <nanobind/nanobind.h>

#include "base/framework_stream.hpp"

namespace gossamer::python {

/// A GPU as Python describes it.
struct Gpu {
  int index = 0;
  /// The cudaStream_t of PyTorch's current stream.
  std::uintptr_t stream = 0;
  /// Takes a number of bytes, and returns a pair: an object that keeps memory, and its address.
  nanobind::object allocate;
};

/// The device of a GPU; without a GPU, the processor.
Device device_of(const std::optional<Gpu>& gpu);

/// Throws ConfigError where there is no such GPU. Called with the interpreter's lock.
std::unique_ptr<FrameworkStream> make_framework_stream(const std::optional<Gpu>& gpu);

/// Adds the class Gpu.
void add_device(nanobind::module_& module);

}  // namespace gossamer::python
