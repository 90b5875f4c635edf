#pragma once
// Which device a rank trains on.

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
  /// More ranks of a node than GPUs are allowed; they take turns.
  bool share = false;
  /// How GPUs exchange: `nccl`, by `mpi` from their own memory, through `host` memory, or `auto`:
  /// the first of these that all ranks have. NCCL wants a GPU for every rank.
  std::string exchange = "auto";
  Precision precision = Precision::kFloat32;
  /// Forward and backward passes are recorded in a CUDA graph; see GraphedStep.
  bool graph = false;
};

/// Throws ConfigError.
DeviceChoice read_device_choice(const Options& device);

/// The device of a rank. On GPUs: number `local_rank` of the GPUs that the process sees; where
/// there are fewer GPUs than ranks, counting starts again at 0. Throws ConfigError where a GPU is
/// asked for and there is none.
Device device_of_rank(const DeviceChoice& choice, const Placement& placement, int num_gpus);

/// Where a rank trains.
struct RankPlace {
  /// Of its GPU; empty for processors.
  std::string uuid = {};
  /// Its process, told apart from all others of the machine.
  std::string process = {};
};

/// Whether ranks share GPUs. A launcher may show every rank one GPU of its own, so numbers of GPUs
/// say nothing about that. Throws ConfigError where they share and were not told to, are threads of
/// one process (autograd has one thread for a GPU, on which one rank's backward pass would wait for
/// the other's), or some ranks have a GPU and others have not.
bool share_gpus(const DeviceChoice& choice, const std::vector<RankPlace>& places);

enum class WireKind : std::uint8_t { kNccl, kMpi, kHost };

/// What `exchange` (of DeviceChoice) comes to where the ranks have `nccl` (`NCCL` and a version,
/// the same on all ranks, or why there is none) and `mpi` (`MPI that reaches GPUs`, or that there
/// is none). Throws ConfigError when they do not have what is asked for.
WireKind choose_wires(std::string_view exchange, const std::vector<std::string>& nccl,
                      const std::vector<std::string>& mpi);

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
  /// Collective. `setup.host` outlives this. Throws JointFailure when a rank cannot use its device,
  /// and ConfigError when the devices of all ranks do not fit together.
  TrainingDevice(const DeviceChoice& choice, const Setup& setup);

  [[nodiscard]] Device device() const { return device_; }
  [[nodiscard]] TorchStream& stream() { return *compute_; }
  /// Collective, after a training that has not failed: see Communicator::close().
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
