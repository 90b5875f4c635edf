#pragma once
// What a rank needs to train on a device: the stream of its model, and the communicator that
// reaches the model's memory.

#include <memory>

#include "base/stream.hpp"
#include "comm/communicator.hpp"
#include "comm/nccl_api.hpp"

namespace gossamer {

class RankDevice {
 public:
  /// On processors: a stream whose work is done at once, and `host` itself. On a GPU: a stream of
  /// its own there, and staging through host memory. `host` outlives this. Throws ConfigError when
  /// there is no such device.
  RankDevice(Device device, Communicator& host);
  /// How blocks of a device travel.
  struct Wires {
    /// By NCCL, if given; it outlives the device.
    NcclApi* nccl = nullptr;
    /// As Communicator::takes_device_memory() says: `host` takes them as they are. Otherwise, and
    /// without NCCL, they go through host memory.
    bool direct = false;
    /// Of NCCL's operations, in seconds.
    double timeout_s = 300.0;
  };
  /// With streams of the caller's choice on one device: `compute` has the model, `exchanges` moves
  /// what is exchanged. `compute` and `host` outlive this. Collective with NCCL.
  RankDevice(Stream& compute, std::shared_ptr<Stream> exchanges, Communicator& host,
             const Wires& wires);

  [[nodiscard]] Stream& stream() { return *compute_; }
  [[nodiscard]] Communicator& communicator() { return *communicator_; }

 private:
  std::unique_ptr<Stream> own_compute_;
  std::unique_ptr<Communicator> own_communicator_;
  Stream* compute_;
  Communicator* communicator_;
};

}  // namespace gossamer
