#include "python/src/device.hpp"

#include <algorithm>
#include <utility>

#include <nanobind/stl/pair.h>

#include "base/make_stream.hpp"

namespace gossamer::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

/// Keeps an object of Python; lets it go with the interpreter's lock.
std::shared_ptr<nb::object> kept(nb::object object) {
  return {new nb::object(std::move(object)), [](nb::object* own) {
            // An interpreter that has ended has taken all with it.
            if (!nb::is_alive()) return;
            const nb::gil_scoped_acquire gil;
            delete own;
          }};
}

DeviceAllocator allocator_of(const std::optional<Gpu>& gpu) {
  if (!gpu) return {};
  const Device device{DeviceType::kCuda, gpu->index};
  return [device, allocate = kept(gpu->allocate)](std::int64_t numel, DType dtype) -> Buffer {
    const Block block{nullptr, numel, dtype, device};
    const nb::gil_scoped_acquire gil;
    // An empty block gets an address too, because a null gradient means that there is none.
    const nb::object made = (*allocate)(std::max<std::int64_t>(block.bytes(), 1));
    auto [owner, address] = nb::cast<std::pair<nb::object, std::uintptr_t>>(made);
    void* const data = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
    return {kept(std::move(owner)), {data, numel, dtype, device}};
  };
}

void* native_of(std::uintptr_t stream) {
  return reinterpret_cast<void*>(stream);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

EngineDevice::EngineDevice(const PySession& session, const std::optional<Gpu>& gpu,
                           const WireChoice& choice, const Logger& logger)
    : device_(gpu ? Device{DeviceType::kCuda, gpu->index} : Device{}),
      stream_(device_, gpu ? native_of(gpu->stream) : nullptr, allocator_of(gpu)),
      wires_([&] {
        const nb::gil_scoped_release free;
        return DeviceWires(
            device_, choice,
            {.host = session.communicator(), .logger = logger, .timeout_s = session.timeout_s()});
      }()) {}

void EngineDevice::follow(std::uintptr_t native) { stream_.follow(native_of(native)); }

void add_device(nb::module_& module) {
  nb::class_<Gpu>(module, "Gpu")
      .def(
          "__init__",
          [](Gpu* gpu, int index, std::uintptr_t stream, nb::object allocate) {
            new (gpu) Gpu{index, stream, std::move(allocate)};
          },
          "index"_a, "stream"_a, "allocate"_a);
  module.def("num_gpus", &num_gpus);
}

}  // namespace gossamer::python
