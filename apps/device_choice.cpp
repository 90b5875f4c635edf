#include "gossamer/apps/device_choice.hpp"

#include "gossamer/core/base/error.hpp"
#include "gossamer/core/base/make_stream.hpp"
#include "gossamer/core/base/text.hpp"
#include "gossamer/core/torch/torch_stream.hpp"

namespace gossamer::apps {

DeviceChoice read_device_choice(const Options& device) {
  return {.name = device.choice("name", {"auto", "cpu", "cuda"}, "cpu"),
          .share = device.flag("share", false),
          .bf16 = device.choice("precision", {"float32", "bf16"}, "float32") == "bf16"};
}

Device device_of_rank(const DeviceChoice& choice, const World& world, int num_gpus) {
  if (choice.name == "cpu" || (choice.name == "auto" && num_gpus == 0)) return {};
  if (num_gpus == 0) {
    throw ConfigError(
        concat("device.name: ", choice.name,
               ", but this process sees no GPU (or the program was built without CUDA), allowed: "
               "cpu, auto"));
  }
  if (world.local_size > num_gpus && !choice.share) {
    throw ConfigError(
        concat("device.share: ", world.local_size, " ranks on a node that has ", num_gpus,
               num_gpus == 1 ? " GPU" : " GPUs",
               "; start as many ranks per node as there are GPUs, or let ranks share them with "
               "device.share: true (they take turns, and exchange through host memory)"));
  }
  return {DeviceType::kCuda, world.local_rank % num_gpus};
}

Device device_of_rank(const DeviceChoice& choice, const World& world) {
  return device_of_rank(choice, world, num_gpus());
}

TrainingDevice::TrainingDevice(Device device, Communicator& host)
    : device_(device), host_(host), compute_(current_torch_stream(device)) {
  if (device.type == DeviceType::kCpu) return;
  copies_ = make_stream(device);
  rank_.emplace(*compute_, *copies_, host);
}

AutocastScope::AutocastScope(Device device, bool on)
    : type_(device.type == DeviceType::kCpu ? at::kCPU : at::kCUDA), on_(on) {
  if (!on_) return;
  was_on_ = at::autocast::is_autocast_enabled(type_);
  dtype_before_ = at::autocast::get_autocast_dtype(type_);
  at::autocast::set_autocast_dtype(type_, at::kBFloat16);
  at::autocast::set_autocast_enabled(type_, true);
}

AutocastScope::~AutocastScope() {
  if (!on_) return;
  // Casts of parameters that the next step changes.
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(type_, was_on_);
  at::autocast::set_autocast_dtype(type_, dtype_before_);
}

}  // namespace gossamer::apps
