#pragma once
// Which device a rank trains on, and with what precision it computes.

#include <memory>
#include <optional>
#include <string>

#include <ATen/autocast_mode.h>

#include "gossamer/comm/communicator.hpp"
#include "gossamer/core/base/log.hpp"
#include "gossamer/core/base/options.hpp"
#include "gossamer/core/base/types.hpp"
#include "gossamer/core/engine/rank_device.hpp"

namespace gossamer::apps {

/// The `device` section of a configuration.
struct DeviceChoice {
  /// `cpu`, `cuda` or `auto`.
  std::string name = "cpu";
  /// More ranks of a node than GPUs are allowed; they take turns.
  bool share = false;
  /// How GPUs exchange: `nccl`, through `host` memory, or `auto`: NCCL where every rank has a GPU
  /// of its own and there is an NCCL.
  std::string exchange = "auto";
  /// Forward passes compute in bfloat16 where LibTorch's autocast says so.
  bool bf16 = false;
};

/// Throws ConfigError.
DeviceChoice read_device_choice(const Options& device);

/// The device of a rank: the GPU that its place on the node says, of those that the process sees.
/// `num_gpus`: how many that is. Throws ConfigError when the ranks of a node are more than its GPUs
/// and do not share them.
Device device_of_rank(const DeviceChoice& choice, const World& world, int num_gpus);
/// The same with the GPUs that there are.
Device device_of_rank(const DeviceChoice& choice, const World& world);

/// A rank's device with the streams that LibTorch uses there.
class TrainingDevice {
 public:
  struct Setup {
    Communicator& host;
    World world;
    Logger logger;
    /// As LaunchOptions::timeout_s.
    double timeout_s = 300.0;
  };
  /// Collective on GPUs. `setup.host` outlives this. Throws ConfigError when the device cannot be
  /// used.
  TrainingDevice(const DeviceChoice& choice, const Setup& setup);

  [[nodiscard]] Device device() const { return device_; }
  [[nodiscard]] Stream& stream() { return *compute_; }
  [[nodiscard]] Communicator& communicator() { return rank_ ? rank_->communicator() : host_; }

 private:
  Device device_;
  Communicator& host_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<NcclApi> nccl_;
  std::unique_ptr<Stream> exchanges_;
  std::optional<RankDevice> rank_;
};

/// While it lives, LibTorch's autocast to bfloat16 is on in this thread, if `on`.
class AutocastScope {
 public:
  AutocastScope(Device device, bool on);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  at::DeviceType type_;
  bool on_;
  bool was_on_ = false;
  at::ScalarType dtype_before_ = at::kFloat;
};

}  // namespace gossamer::apps
