#pragma once
// Chooses the device on which a rank trains, and the way in which GPUs exchange blocks. Not thread
// safe.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/train/precision.hpp"
#include "base/log.hpp"
#include "base/options.hpp"
#include "base/types.hpp"
#include "comm/communicator.hpp"
#include "core/rank_device.hpp"
#include "core/torch/torch_stream.hpp"

namespace gossamer::apps {

/// The `device` section of a configuration.
struct DeviceChoice {
  /// `cpu`, `cuda` or `auto`.
  std::string name = "cpu";
  /// True: a node may have more ranks than GPUs. Ranks that share a GPU take turns.
  bool share = false;
  /// How GPUs exchange: `nccl`; `mpi`, from the GPUs' own memory; `host`, through host memory; or
  /// `auto`, the first of these that all ranks have. NCCL needs a GPU for every rank; `auto` also
  /// wants a process for every rank.
  std::string exchange = "auto";
  Precision precision = Precision::kFloat32;
  /// True: forward and backward passes are recorded in a CUDA graph; see GraphedStep.
  bool graph = false;
};

/// Throws ConfigError for a wrong value.
DeviceChoice read_device_choice(const Options& device);

/// The device of a rank, where `num_gpus` is the number of GPUs that the process sees. On GPUs the
/// rank takes the GPU with the number `local_rank`; if there are fewer GPUs than ranks, counting
/// starts again at 0. Throws ConfigError if a GPU is asked for and there is none.
Device device_of_rank(const DeviceChoice& choice, const Placement& placement, int num_gpus);

/// Loads what LibTorch needs for the choice: the libraries of GPUs, if a rank may train on one.
/// Call this before all other uses of LibTorch. Throws ConfigError.
void load_torch_for(const DeviceChoice& choice, int num_gpus);

/// Where a rank trains.
struct RankPlace {
  /// The UUID of the rank's GPU; empty on processors.
  std::string uuid = {};
  /// A text that no other process of the machine has.
  std::string process = {};
};

/// True if ranks share GPUs. Compares UUIDs and not the numbers of the GPUs, because a launcher may
/// show every rank one GPU of its own. Throws ConfigError in three cases:
/// - Ranks share a GPU, and the configuration does not allow it.
/// - The ranks that share a GPU are threads of one process. Autograd has one thread for each GPU,
///   so one rank's backward pass would wait for that of the other rank.
/// - Some ranks have a GPU, and other ranks have none.
bool share_gpus(const DeviceChoice& choice, const std::vector<RankPlace>& places);

/// True if a process has two ranks. `auto` then leaves NCCL out: its operation on one rank's GPU
/// waits for another rank's, and meanwhile the driver may keep the other rank's thread from calling
/// CUDA (docs/decisions/the-host-waits-for-exchanges.md).
bool ranks_are_threads(const std::vector<RankPlace>& places);

enum class WireKind : std::uint8_t { kNccl, kMpi, kHost };

/// Chooses the way in which GPUs exchange. `exchange` is that of DeviceChoice. `nccl` has one text
/// per rank: `NCCL` and its version, or the reason why the rank has no NCCL. Ranks with different
/// versions have no NCCL together. `mpi` has one text per rank: `MPI that reaches GPUs`, or that
/// there is none. Throws ConfigError if the ranks do not have the way that `exchange` asks for.
WireKind choose_wires(std::string_view exchange, const std::vector<std::string>& nccl,
                      const std::vector<std::string>& mpi);

/// A rank's device: the stream on which LibTorch computes there, and a communicator that reaches
/// the device's memory.
class TrainingDevice {
 public:
  struct Setup {
    Communicator& host;
    World world;
    Logger logger;
    /// Seconds, as LaunchOptions::timeout_s.
    double timeout_s = 300.0;
  };
  /// Collective. `setup.host` must outlive this object. Throws JointFailure if a rank cannot use
  /// its device, and ConfigError if the devices of all ranks do not fit together.
  TrainingDevice(const DeviceChoice& choice, const Setup& setup);

  [[nodiscard]] Device device() const { return device_; }
  [[nodiscard]] TorchStream& stream() { return *compute_; }
  /// Collective, after a training that has not failed; see Communicator::close().
  void close() { communicator().close(); }
  [[nodiscard]] Communicator& communicator() { return rank_ ? rank_->communicator() : host_; }

 private:
  Device device_;
  Communicator& host_;
  std::unique_ptr<TorchStream> compute_;
  std::unique_ptr<NcclApi> nccl_;
  std::optional<RankDevice> rank_;
};

}  // namespace gossamer::apps
