#include "base/make_stream.hpp"

#include "base/cuda_stream.hpp"
#include "base/error.hpp"
#include "base/host_stream.hpp"
#include "base/text.hpp"

namespace gossamer {

Device parse_device(std::string_view text) {
  if (text == "cpu") return {};
  if (text == "cuda") return {DeviceType::kCuda, 0};
  int index = -1;
  if (text.starts_with("cuda:") && parse_whole(text.substr(5), index) && index >= 0) {
    return {DeviceType::kCuda, index};
  }
  throw ConfigError(concat("'", text, "' is no device, allowed: cpu, cuda, cuda:N"));
}

int num_gpus() { return num_cuda_devices(); }

std::string gpu_uuid(Device device) {
  return device.type == DeviceType::kCuda ? cuda_uuid(device.index) : std::string();
}

std::unique_ptr<Stream> make_stream(Device device, StreamPriority priority) {
  if (device.type == DeviceType::kCpu) return std::make_unique<InlineStream>();
  return make_cuda_stream(
      {.device = device.index, .high_priority = priority == StreamPriority::kHigh});
}

}  // namespace gossamer
