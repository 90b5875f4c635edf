#include "base/framework_stream.hpp"

#include <utility>

#include "base/host_stream.hpp"

namespace gossamer {
namespace {

std::shared_ptr<Stream> stream_on(Device device, void* native, DeviceAllocator allocate) {
  if (device.type == DeviceType::kCpu) return std::make_shared<InlineStream>();
  return make_cuda_stream(
      {.device = device.index, .native = native, .allocate = std::move(allocate)});
}

}  // namespace

FrameworkStream::FrameworkStream(Device device, void* native, DeviceAllocator allocate)
    : FrameworkStream(device, allocate, stream_on(device, native, allocate)) {}

FrameworkStream::FrameworkStream(Device device, DeviceAllocator allocate,
                                 std::shared_ptr<Stream> first)
    : RelayStream(*first), device_(device), allocate_(std::move(allocate)) {
  void* const native = first->native();
  streams_.emplace(native, std::move(first));
}

void FrameworkStream::set_current(void* native) {
  if (device_.type == DeviceType::kCpu) return;
  std::shared_ptr<Stream>& stream = streams_[native];
  if (!stream) stream = stream_on(device_, native, allocate_);
  RelayStream::set_current(*stream);
}

}  // namespace gossamer
