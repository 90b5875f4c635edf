#include "python/src/device.hpp"

#include "python/src/pointer.hpp"

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
  return [device = device_of(gpu), allocate = kept(gpu->allocate)](std::int64_t numel,
                                                                   DType dtype) -> Buffer {
    const Block block{nullptr, numel, dtype, device};
    const nb::gil_scoped_acquire gil;
    // An empty block gets an address too, because a null gradient means that there is none.
    const nb::object made = (*allocate)(std::max<std::int64_t>(block.bytes(), 1));
    auto [owner, address] = nb::cast<std::pair<nb::object, std::uintptr_t>>(made);
    void* const data = pointer_to(address);
    return {kept(std::move(owner)), {data, numel, dtype, device}};
  };
}

}  // namespace

Device device_of(const std::optional<Gpu>& gpu) {
  return gpu ? Device{DeviceType::kCuda, gpu->index} : Device{};
}

std::unique_ptr<FrameworkStream> make_framework_stream(const std::optional<Gpu>& gpu) {
  return std::make_unique<FrameworkStream>(device_of(gpu), gpu ? pointer_to(gpu->stream) : nullptr,
                                           allocator_of(gpu));
}

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
