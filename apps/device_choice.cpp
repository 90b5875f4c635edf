#include "gossamer/apps/device_choice.hpp"

#include "gossamer/comm/nccl_library.hpp"
#include "gossamer/core/base/error.hpp"
#include "gossamer/core/base/make_stream.hpp"
#include "gossamer/core/base/text.hpp"
#include "gossamer/core/torch/torch_stream.hpp"

namespace gossamer::apps {
namespace {

/// Collective: NCCL if all ranks can have it, null if exchanges go through host memory.
std::unique_ptr<NcclApi> agree_on_nccl(const DeviceChoice& choice,
                                       const TrainingDevice::Setup& setup) {
  std::unique_ptr<NcclApi> nccl;
  std::string reason;
  if (choice.exchange == "host") {
    reason = "as asked for";
  } else if (choice.share) {
    reason = "ranks share GPUs, which NCCL refuses";
  } else {
    try {
      nccl = load_nccl();
    } catch (const ConfigError& error) {
      reason = error.what();
    }
  }
  const std::string mine = nccl ? concat("NCCL ", nccl->version()) : concat("no NCCL: ", reason);
  const std::vector<std::string> all = setup.host.all_gather(mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (nccl && all[rank] == mine) continue;
    if (choice.exchange == "nccl") {
      throw ConfigError(concat("device.exchange: nccl, but rank ", rank, " has ", all[rank],
                               nccl ? concat(", and this one ", mine) : "",
                               ", allowed: auto, host"));
    }
    if (setup.world.rank == 0) {
      setup.logger.info(
          concat("GPUs exchange through host memory: rank ", rank, " has ", all[rank]));
    }
    return nullptr;
  }
  if (setup.world.rank == 0) setup.logger.info(concat("GPUs exchange by ", mine));
  return nccl;
}

}  // namespace

DeviceChoice read_device_choice(const Options& device) {
  return {.name = device.choice("name", {"auto", "cpu", "cuda"}, "cpu"),
          .share = device.flag("share", false),
          .exchange = device.choice("exchange", {"auto", "nccl", "host"}, "auto"),
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

TrainingDevice::TrainingDevice(const DeviceChoice& choice, const Setup& setup)
    : device_(device_of_rank(choice, setup.world)),
      host_(setup.host),
      compute_(current_torch_stream(device_)) {
  if (device_.type == DeviceType::kCpu) return;
  // Exchanges are short, and peers wait for them.
  exchanges_ = make_stream(device_, StreamPriority::kHigh);
  if (setup.world.size > 1) nccl_ = agree_on_nccl(choice, setup);
  rank_.emplace(*compute_, *exchanges_, host_, nccl_.get(), setup.timeout_s);
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
