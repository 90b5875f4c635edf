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

/// Whether ranks share GPUs. The numbers of the GPUs do not tell, because a launcher may show every
/// rank one GPU of its own. Throws ConfigError in three cases:
/// - ranks share a GPU, and the configuration does not allow it;
/// - the ranks that share a GPU are threads of one process. Autograd has one thread for each GPU,
/// so
///   one rank's backward pass would wait for that of the other rank;
/// - some ranks have a GPU, and other ranks have none.
bool share_gpus(const DeviceChoice& choice, const std::vector<RankPlace>& places);

enum class WireKind : std::uint8_t { kNccl, kMpi, kHost };

/// Chooses the way of exchanging for `exchange` of DeviceChoice. `nccl` has one text per rank:
/// `NCCL` and its version, or the reason why the rank has no NCCL. Ranks with different versions
/// have no NCCL together. `mpi` has one text per rank: `MPI that reaches GPUs`, or that there is
/// none. Throws ConfigError when the ranks do not have the way that `exchange` asks for.
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
