#include "gossamer/comm/direct_communicator.hpp"

#include <utility>

#include "gossamer/comm/staged_communicator.hpp"

namespace gossamer {
namespace {

class DirectCommunicator : public Communicator {
 public:
  DirectCommunicator(Communicator& host, Stream& stream)
      : host_(host), stream_(stream), staged_(make_staged_communicator(host, stream)) {}
  DirectCommunicator(std::unique_ptr<Communicator> host, Stream& stream)
      : own_host_(std::move(host)),
        host_(*own_host_),
        stream_(stream),
        staged_(make_staged_communicator(host_, stream)) {}

  [[nodiscard]] int rank() const override { return host_.rank(); }
  [[nodiscard]] int size() const override { return host_.size(); }
  [[nodiscard]] const std::vector<int>& world_ranks() const override { return host_.world_ranks(); }
  [[nodiscard]] Stream& stream() override { return stream_; }
  [[nodiscard]] bool reaches_gpus() const override { return host_.reaches_gpus(); }

  Request exchange(int peer, ConstBlock send, Block receive, OpContext context) override {
    return host_.exchange(peer, send, receive, entered(std::move(context)));
  }
  Request exchange_with_neighbors(ConstBlock send, std::vector<int> peers,
                                  std::vector<Incoming> incoming, OpContext context) override {
    return host_.exchange_with_neighbors(send, std::move(peers), std::move(incoming),
                                         entered(std::move(context)));
  }
  Request all_reduce_sum(ConstBlock send, Block receive, OpContext context) override {
    return staged_->all_reduce_sum(send, receive, std::move(context));
  }
  Request broadcast(Block block, int root, OpContext context) override {
    return staged_->broadcast(block, root, std::move(context));
  }
  std::vector<std::string> all_gather(std::string text) override {
    return host_.all_gather(std::move(text));
  }
  void check() override { host_.check(); }
  void barrier() override { host_.barrier(); }
  std::unique_ptr<Communicator> split(int color) override {
    std::unique_ptr<Communicator> part = host_.split(color);
    if (!part) return nullptr;
    return std::make_unique<DirectCommunicator>(std::move(part), stream_);
  }

 private:
  /// MPI works on the device of the thread that calls it, the progress worker's.
  OpContext entered(OpContext context) {
    context.prepare = [&stream = stream_, prepare = std::move(context.prepare)]() -> EventPtr {
      stream.enter();
      return prepare ? prepare() : nullptr;
    };
    return context;
  }

  std::unique_ptr<Communicator> own_host_;
  Communicator& host_;
  Stream& stream_;
  std::unique_ptr<Communicator> staged_;
};

}  // namespace

std::unique_ptr<Communicator> make_direct_communicator(Communicator& host, Stream& stream) {
  return std::make_unique<DirectCommunicator>(host, stream);
}

}  // namespace gossamer
