// What a build without CUDA has in the place of base/cuda_stream.cpp.

#include "base/cuda_stream.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {

std::unique_ptr<Stream> make_cuda_stream(const CudaStreamOptions& options) {
  throw ConfigError(concat(to_string(Device{DeviceType::kCuda, options.device}),
                           ": this program was built without CUDA, allowed: cpu; build it where "
                           "nvcc is on PATH (docs/guide/gpu.md)"));
}

std::string cuda_uuid(int /*device*/) { return {}; }

int num_cuda_devices() { return 0; }

}  // namespace gossamer
