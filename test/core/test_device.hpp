#pragma once
// Devices of a rank for tests. Their work is done late, as a GPU's is, but they need no GPU.

#include "test/support/fake_nccl.hpp"
#include "test/support/thread_stream.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/relay_stream.hpp"
#include "comm/collectives/staged_communicator.hpp"
#include "comm/elastic/elastic_transport.hpp"
#include "comm/nccl/communicator.hpp"

namespace gossamer {

/// Where the parameters are, and when work on them is done.
enum class Where : std::uint8_t {
  kHost,     // at once
  kLagging,  // on a thread that lags behind, in memory that communicators can reach
  kRelayed,  // as kLagging, on two threads in turn
  kDevice,   // as kLagging, in memory out of their reach: exchanges use staging buffers
  kDirect,   // as kDevice, but the communicator can reach the memory
  kNccl,     // as kDevice, with NCCL's communicator over a stand-in for NCCL's calls
};

/// The places whose work lags behind.
inline constexpr std::array kLaggingPlaces = {Where::kLagging, Where::kRelayed, Where::kDevice,
                                              Where::kDirect, Where::kNccl};

inline const char* name_of(Where where) {
  constexpr std::array kNames = {"host", "lagging", "relayed", "device", "direct", "nccl"};
  return kNames[static_cast<std::size_t>(where)];
}

/// A stream that gives its work to two threads in turn.
class AlternatingStream : public RelayStream {
 public:
  AlternatingStream() : AlternatingStream(std::make_unique<ThreadStream>()) {}
  void run(std::function<void()> work) override {
    set_current(&current() == first_.get() ? second_ : *first_);
    RelayStream::run(std::move(work));
  }

 private:
  explicit AlternatingStream(std::unique_ptr<ThreadStream> first)
      : RelayStream(*first), first_(std::move(first)) {}
  std::unique_ptr<ThreadStream> first_;
  ThreadStream second_;
};

/// One rank's streams, and the communicator that reaches its memory.
class TestDevice {
 public:
  TestDevice(Where where, Communicator& communicator, FakeNcclHub& hub)
      : communicator_(&communicator), nccl_(std::make_unique<FakeNccl>(hub)) {
    if (where == Where::kHost) return;
    if (where == Where::kRelayed) {
      compute_ = std::make_unique<AlternatingStream>();
      return;
    }
    const Device device{where == Where::kLagging ? DeviceType::kCpu : DeviceType::kCuda, 0};
    compute_ = std::make_unique<ThreadStream>(device);
    if (where == Where::kLagging) return;
    const auto side = std::make_shared<ThreadStream>(device);
    own_ =
        make_transport(communicator, side,
                       [where, side, nccl = nccl_.get()](Communicator& host, const std::string&) {
                         return make_communicator(where, host, side, *nccl);
                       });
    communicator_ = own_.get();
  }

  [[nodiscard]] Communicator& communicator() { return *communicator_; }
  /// Null: the pipeline's own stream.
  [[nodiscard]] Stream* stream() { return compute_.get(); }

 private:
  static std::unique_ptr<Communicator> make_communicator(Where where, Communicator& host,
                                                         std::shared_ptr<Stream> side,
                                                         NcclApi& nccl) {
    if (where == Where::kNccl) return make_nccl_communicator(nccl, host, std::move(side));
    return make_staged_communicator(
        host, std::move(side), {.piece_bytes = 300, .direct_messages = where == Where::kDirect});
  }

  Communicator* communicator_;
  std::unique_ptr<FakeNccl> nccl_;
  std::unique_ptr<Communicator> own_;
  std::unique_ptr<Stream> compute_;
};

}  // namespace gossamer
