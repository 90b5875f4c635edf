#pragma once
// Makes streams from names of devices, and counts and identifies GPUs.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/stream.hpp"

namespace gossamer {

/// Reads `cpu`, `cuda` (the first GPU that this process sees) or `cuda:N`. Throws ConfigError for
/// any other text; does not check that the device exists.
Device parse_device(std::string_view text);

/// The number of GPUs that this process sees; 0 where the program was built without CUDA.
int num_gpus();

/// The UUID of a GPU (`GPU-...`, as nvidia-smi -L prints it). Unlike the index, the UUID is the
/// same in every process. Empty for processors.
std::string gpu_uuid(Device device);

enum class StreamPriority : std::uint8_t { kNormal, kHigh };

/// A new stream on a device; an InlineStream on processors. Throws ConfigError when this program
/// was built without support for the device, or when there is no such device.
std::unique_ptr<Stream> make_stream(Device device,
                                    StreamPriority priority = StreamPriority::kNormal);

}  // namespace gossamer
