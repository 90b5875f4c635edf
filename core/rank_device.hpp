#pragma once
// A RankDevice has what a rank needs to train on a device: the stream of its model, and a
// communicator that reaches the model's memory. Not thread safe.

#include <memory>

#include "base/stream.hpp"
#include "comm/communicator.hpp"
#include "comm/nccl_api.hpp"

namespace gossamer {

class RankDevice {
 public:
  /// On processors: a stream whose work is done at once, and `host` itself as the communicator. On
  /// a GPU: a new stream, and a communicator that stages blocks through host memory. `host` must
  /// outlive this object. Throws ConfigError when there is no such device.
  RankDevice(Device device, Communicator& host);
  /// How the blocks of a device travel to other ranks.
  struct Wires {
    /// If given, blocks travel by NCCL; it must outlive this object.
    NcclApi* nccl = nullptr;
    /// True: without NCCL, `host` takes blocks in device memory as they are (see
    /// Communicator::takes_device_memory()). False: without NCCL, blocks go through host memory.
    bool direct = false;
    /// Seconds that an operation of NCCL may take.
    double timeout_s = 300.0;
  };
  /// Uses two streams of the caller on one device: `compute` works on the model, `exchanges` moves
  /// the blocks. `compute` and `host` must outlive this object. Collective with NCCL.
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
