#pragma once
// What a rank needs to train on a device: the stream of its model, and the communicator that
// reaches the model's memory.

#include <memory>

#include "gossamer/comm/communicator.hpp"
#include "gossamer/comm/nccl_api.hpp"
#include "gossamer/core/base/stream.hpp"

namespace gossamer {

class RankDevice {
 public:
  /// On processors: a stream whose work is done at once, and `host` itself. On a GPU: a stream of
  /// its own there, and staging through host memory. `host` outlives this. Throws ConfigError when
  /// there is no such device.
  RankDevice(Device device, Communicator& host);
  /// With streams of the caller's choice on a device whose memory `host` does not reach: `compute`
  /// has the model, `exchanges` moves what is exchanged: by NCCL if `nccl` is given (collective
  /// then), else through host memory. All outlive this.
  RankDevice(Stream& compute, Stream& exchanges, Communicator& host, NcclApi* nccl = nullptr,
             double timeout_s = 300.0);

  [[nodiscard]] Stream& stream() { return *compute_; }
  [[nodiscard]] Communicator& communicator() { return *communicator_; }

 private:
  std::unique_ptr<Stream> own_compute_;
  std::unique_ptr<Stream> own_copies_;
  std::unique_ptr<Communicator> own_communicator_;
  Stream* compute_;
  Communicator* communicator_;
};

}  // namespace gossamer
