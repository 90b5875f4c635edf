#pragma once
// Streams by the name of their device.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/stream.hpp"

namespace gossamer {

/// `cpu`, `cuda` (the first GPU that this process sees) or `cuda:N`. Throws ConfigError.
Device parse_device(std::string_view text);

/// The GPUs that this process sees; 0 where the program was built without CUDA.
int num_gpus();

/// What a GPU is called everywhere (`GPU-...`, as nvidia-smi -L prints it); empty for processors.
std::string gpu_uuid(Device device);

enum class StreamPriority : std::uint8_t { kNormal, kHigh };

/// A stream of its own on a device. Throws ConfigError when this program was built without what the
/// device needs, or when there is no such device.
std::unique_ptr<Stream> make_stream(Device device,
                                    StreamPriority priority = StreamPriority::kNormal);

}  // namespace gossamer
