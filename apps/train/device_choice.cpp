#include "apps/train/device_choice.hpp"

#include "apps/train/agreement.hpp"
#include "apps/train/sections.hpp"
#include "base/error.hpp"
#include "base/make_stream.hpp"
#include "base/text.hpp"

namespace gossamer::apps {

DeviceChoice read_device_choice(const Options& device) {
  return {.name = device.read(device_section::kName),
          .transport = read_transport_choice(device),
          .precision = precision(device.read(device_section::kPrecision)),
          .graph = device.read(device_section::kGraph)};
}

Device device_of_rank(const DeviceChoice& choice, const Placement& placement, int num_gpus) {
  if (choice.name == "cpu" || (choice.name == "auto" && num_gpus == 0)) return {};
  if (num_gpus == 0) {
    throw ConfigError(
        concat("device.name: ", choice.name,
               ", but this process sees no GPU (or the program was built without CUDA), allowed: "
               "cpu, auto"));
  }
  return {DeviceType::kCuda, placement.local_rank % num_gpus};
}

void load_torch_for(const DeviceChoice& choice, int num_gpus) {
  if (choice.name != "cpu" && num_gpus > 0) load_torch_cuda();
}

namespace {

/// all_or_none(), except for a rank that joins, which meets no other rank here.
template <class Work>
auto all_or_none_unless_joining(const TrainingDevice::Setup& setup, const Work& work) {
  return setup.joins ? work() : all_or_none(setup.host, work);
}

}  // namespace

TrainingDevice::TrainingDevice(const DeviceChoice& choice, const Setup& setup)
    : device_(all_or_none_unless_joining(
          setup, [&] { return device_of_rank(choice, setup.world.placement, num_gpus()); })),
      compute_(all_or_none_unless_joining(
          setup, [this] { return std::make_unique<TorchStream>(device_); })),
      transport_(device_, choice.transport,
                 {.host = setup.host, .logger = setup.logger, .timeout_s = setup.timeout_s}) {}

}  // namespace gossamer::apps
