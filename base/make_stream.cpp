#include "base/make_stream.hpp"

#include "base/error.hpp"
#include "base/host_stream.hpp"
#include "base/text.hpp"
#ifdef GOSSAMER_HAVE_CUDA
#include "base/cuda_stream.hpp"
#endif

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

int num_gpus() {
#ifdef GOSSAMER_HAVE_CUDA
  return num_cuda_devices();
#else
  return 0;
#endif
}

std::string gpu_uuid([[maybe_unused]] Device device) {
#ifdef GOSSAMER_HAVE_CUDA
  if (device.type == DeviceType::kCuda) return cuda_uuid(device.index);
#endif
  return {};
}

std::unique_ptr<Stream> make_stream(Device device, [[maybe_unused]] StreamPriority priority) {
  if (device.type == DeviceType::kCpu) return std::make_unique<InlineStream>();
#ifdef GOSSAMER_HAVE_CUDA
  const int count = num_cuda_devices();
  if (device.index >= count) {
    throw ConfigError(concat(
        to_string(device), ": this process sees ", count, " GPUs, allowed: cpu",
        count > 0 ? concat(", cuda:0 to cuda:", count - 1) : "",
        "; nvidia-smi lists the GPUs of this machine, CUDA_VISIBLE_DEVICES hides some of them"));
  }
  return std::make_unique<CudaStream>(CudaStreamOptions{
      .device = device.index, .high_priority = priority == StreamPriority::kHigh});
#else
  throw ConfigError(concat(to_string(device),
                           ": this program was built without CUDA, allowed: cpu; build it where "
                           "nvcc is on PATH (docs/gpu.md)"));
#endif
}

}  // namespace gossamer
