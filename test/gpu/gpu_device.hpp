#pragma once
// Several ranks on one GPU, which exchange through host memory.

#include "test/core/problem.hpp"

#include <memory>
#include <string>

#include "base/make_stream.hpp"
#include "comm/collectives/staged_communicator.hpp"
#include "comm/elastic/elastic_transport.hpp"

namespace gossamer {

/// A rank's share of the GPU.
class GpuDevice {
 public:
  explicit GpuDevice(Communicator& host)
      : staged_(make_staged(host, make_stream({DeviceType::kCuda, 0}, StreamPriority::kHigh))),
        compute_(make_stream({DeviceType::kCuda, 0})) {}
  [[nodiscard]] Communicator& communicator() { return *staged_; }
  [[nodiscard]] Stream* stream() { return compute_.get(); }

 private:
  static std::unique_ptr<Communicator> make_staged(Communicator& host,
                                                   const std::shared_ptr<Stream>& stream) {
    return make_transport(host, stream, [stream](Communicator& any, const std::string&) {
      return make_staged_communicator(any, stream);
    });
  }

  std::unique_ptr<Communicator> staged_;
  std::unique_ptr<Stream> compute_;
};

inline Trajectory run_on_gpu(const Problem& problem) {
  return run_pipeline_on(problem, [](Communicator& host) { return GpuDevice(host); });
}

}  // namespace gossamer
