#pragma once
// A RankDevice has what a rank needs to train on a device without a framework: a stream for its
// model, and a communicator that reaches the model's memory. Not thread safe.

#include <memory>

#include "base/stream.hpp"
#include "comm/communicator.hpp"

namespace gossamer {

class RankDevice {
 public:
  /// On processors: a stream whose work is done at once, and `host` itself as the communicator. On
  /// a GPU: a new stream, and a communicator that stages blocks through host memory. `host` must
  /// outlive this object. Throws ConfigError when there is no such device.
  RankDevice(Device device, Communicator& host);

  [[nodiscard]] Stream& stream() { return *compute_; }
  [[nodiscard]] Communicator& communicator() { return *communicator_; }

 private:
  std::unique_ptr<Stream> compute_;
  /// The communicator that stages blocks; null on processors.
  std::unique_ptr<Communicator> staged_;
  Communicator* communicator_;
};

}  // namespace gossamer
