#pragma once
// The device of a model of Python: its stream, its memory, and the communicator that reaches it.
//
// On a GPU the stream is the one on which PyTorch computes, and memory comes from PyTorch's
// allocator. That takes the interpreter's lock: no worker allocates.
//
// Thread safety: one thread at a time.

#include "python/src/session.hpp"

#include <cstdint>
#include <memory>
#include <optional>

#include <nanobind/nanobind.h>

#include "base/framework_stream.hpp"
#include "base/log.hpp"
#include "core/device_wires.hpp"

namespace gossamer::python {

/// A GPU as Python describes it.
struct Gpu {
  int index = 0;
  /// The cudaStream_t of PyTorch's current stream.
  std::uintptr_t stream = 0;
  /// Takes a number of bytes, and returns a pair: an object that keeps memory, and its address.
  nanobind::object allocate;
};

class EngineDevice {
 public:
  /// Collective; called with the interpreter's lock. `gpu`: nothing for processors. Throws
  /// ConfigError on all ranks where their devices do not fit together.
  EngineDevice(const PySession& session, const std::optional<Gpu>& gpu, const WireChoice& choice,
               const Logger& logger);

  [[nodiscard]] Device device() const { return device_; }
  [[nodiscard]] FrameworkStream& stream() { return stream_; }
  [[nodiscard]] Communicator& communicator() { return wires_.communicator(); }
  /// Passes later work on to this cudaStream_t.
  void follow(std::uintptr_t native);
  /// Collective, after a training that has not failed.
  void close() { wires_.close(); }

 private:
  Device device_;
  FrameworkStream stream_;
  DeviceWires wires_;
};

/// Adds the class Gpu.
void add_device(nanobind::module_& module);

}  // namespace gossamer::python
