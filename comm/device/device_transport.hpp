#pragma once
// DeviceTransport is the communicator with which a rank exchanges the memory of its device. On
// processors it is the host's communicator. On GPUs all ranks choose one way together: NCCL, an MPI
// that takes the memory of GPUs, or host memory.
//
// Thread safety: as the communicator's. Errors: ConfigError on all ranks where the ranks' devices
// do not fit together or do not have the way that is asked for; CommError.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.hpp"
#include "base/options.hpp"
#include "base/stream.hpp"
#include "comm/communicator.hpp"
#include "comm/nccl/api.hpp"

namespace gossamer {

/// The keys `share` and `exchange` of a section `device`.
struct TransportChoice {
  /// True: a node may have more ranks than GPUs. Ranks that share a GPU take turns.
  bool share = false;
  /// How GPUs exchange: `nccl`; `mpi`, from the GPUs' own memory; `host`, through host memory; or
  /// `auto`, the first of these that all ranks have. `auto` takes NCCL only where every rank has a
  /// GPU and a process of its own. With `nccl`, processes may share a GPU, for tests: NCCL takes
  /// each for a host of its own (NCCL_HOSTID).
  std::string exchange = "auto";
};

inline constexpr FlagOption kSharesGpus{
    "share", "true: a node may have more ranks than GPUs; they take turns (docs/guide/gpu.md)"};
inline constexpr ChoiceOption kGpuExchange{
    "exchange",
    "how GPUs exchange: nccl; mpi: from their own memory; host: through the host's; auto: the "
    "first of these that all ranks have",
    {.words = {"auto", "nccl", "mpi", "host"}, .fallback = "auto"}};

/// Throws ConfigError for a wrong value.
TransportChoice read_transport_choice(const Options& device);

/// Where a rank trains.
struct RankPlace {
  /// The UUID of the rank's GPU; empty on processors.
  std::string uuid = {};
  /// A text that no other process of the machine has.
  std::string process = {};
};

/// True if ranks share GPUs. Compares UUIDs and not the numbers of the GPUs, because a launcher may
/// show every rank one GPU of its own. Throws ConfigError in three cases:
/// - Ranks share a GPU, and `may_share` is false.
/// - The ranks that share a GPU are threads of one process. Autograd has one thread for each GPU,
///   so one rank's backward pass would wait for the other rank's backward pass.
/// - Some ranks have a GPU, and other ranks have none.
bool share_gpus(bool may_share, const std::vector<RankPlace>& places);

/// True if a process has two ranks. `auto` then leaves NCCL out: an operation of NCCL on one rank's
/// GPU waits for another rank's GPU. Meanwhile the driver may keep the other rank's thread from
/// calling CUDA (docs/design/decisions/gpus.md).
bool ranks_are_threads(const std::vector<RankPlace>& places);

/// Says why no rank takes NCCL, with advice; empty: NCCL is wanted. `exchange` is
/// TransportChoice::exchange. `shares`: processes share GPUs. `threads`: a process has two ranks.
std::string why_not_nccl(std::string_view exchange, bool shares, bool threads);

enum class TransportKind : std::uint8_t { kNccl, kMpi, kHost };

/// Chooses the way in which GPUs exchange. `exchange` is TransportChoice::exchange. `nccl` has one
/// text per rank: `NCCL` and its version, or the reason why the rank has no NCCL. Ranks with
/// different versions have no common NCCL. `mpi` has one text per rank: `MPI that reaches GPUs`, or
/// the reason why there is no such MPI. Throws ConfigError if the ranks do not have the way that
/// `exchange` asks for.
TransportKind choose_transport(std::string_view exchange, const std::vector<std::string>& nccl,
                               const std::vector<std::string>& mpi);

class DeviceTransport {
 public:
  struct Setup {
    Communicator& host;
    /// Rank 0's gets a line about the way of the exchanges.
    Logger logger;
    /// Seconds that an operation of NCCL may take.
    double timeout_s = 300.0;
  };
  /// Collective, except where ranks may be lost: there Communicator::connect() is collective, in
  /// every world anew (elastic_transport.hpp). `device` is the device of the rank's model.
  /// `setup.host` must outlive this object.
  DeviceTransport(Device device, const TransportChoice& choice, const Setup& setup);
  DeviceTransport(const DeviceTransport&) = delete;
  DeviceTransport& operator=(const DeviceTransport&) = delete;
  ~DeviceTransport() = default;

  [[nodiscard]] Communicator& communicator() { return own_ ? *own_ : host_; }
  /// Collective, after a training that has not failed; see Communicator::close(). Leaves the host's
  /// communicator open.
  void close();

 private:
  /// Collective. How the GPUs exchange in the present world; `flaw` as for MakeTransport.
  TransportKind meet(Device device, const TransportChoice& choice, const Logger& logger,
                     const std::string& flaw);

  Communicator& host_;
  std::unique_ptr<NcclApi> nccl_;
  /// The communicator of devices; null on processors.
  std::unique_ptr<Communicator> own_;
};

}  // namespace gossamer
