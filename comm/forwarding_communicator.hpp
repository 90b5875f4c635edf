#pragma once
// Passes every call on to another communicator. A derived class overrides the calls that it
// changes.
//
// Thread safety and errors: as the other communicator.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.hpp"

namespace gossamer {

class ForwardingCommunicator : public Communicator, protected SharedMemory, protected Elastic {
 public:
  /// `inner` outlives this.
  explicit ForwardingCommunicator(Communicator& inner) : inner_(&inner) {}

  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  [[nodiscard]] const std::vector<int>& world_ranks() const override {
    return inner_->world_ranks();
  }
  [[nodiscard]] const std::shared_ptr<Stream>& stream() override { return inner_->stream(); }
  [[nodiscard]] bool takes_device_memory() const override { return inner_->takes_device_memory(); }
  Request exchange(int peer, ConstBlock send, Block receive, OpContext context) override {
    return inner_->exchange(peer, send, receive, std::move(context));
  }
  Request exchange_with_neighbors(ConstBlock send, std::vector<int> peers,
                                  std::vector<Incoming> incoming, OpContext context) override {
    return inner_->exchange_with_neighbors(send, std::move(peers), std::move(incoming),
                                           std::move(context));
  }
  Request send(int peer, int tag, ConstBlock message, OpContext context) override {
    return inner_->send(peer, tag, message, std::move(context));
  }
  Request receive(int peer, int tag, Block message, OpContext context) override {
    return inner_->receive(peer, tag, message, std::move(context));
  }
  Request all_reduce_sum(ConstBlock send, Block receive, OpContext context) override {
    return inner_->all_reduce_sum(send, receive, std::move(context));
  }
  Request reduce_sum(Block block, int root, OpContext context) override {
    return inner_->reduce_sum(block, root, std::move(context));
  }
  Request broadcast(Block block, int root, OpContext context) override {
    return inner_->broadcast(block, root, std::move(context));
  }
  void connect() override { inner_->connect(); }
  std::shared_ptr<void> reserve(std::int64_t numel, DType dtype, std::int64_t num_blocks) override {
    return inner_->reserve(numel, dtype, num_blocks);
  }
  SharedMemory* shared_memory() override { return inner_->shared_memory() ? this : nullptr; }
  std::vector<std::string> all_gather(std::string text) override {
    return inner_->all_gather(std::move(text));
  }
  void check() override { inner_->check(); }
  [[nodiscard]] double worker_cpu_s() override { return inner_->worker_cpu_s(); }
  void barrier() override { inner_->barrier(); }
  Elastic* elastic() override { return inner_->elastic() ? this : nullptr; }
  void close() override { inner_->close(); }
  std::unique_ptr<Communicator> split(int color) override { return inner_->split(color); }

 protected:
  void set_inner(Communicator& inner) { inner_ = &inner; }

  // Where the other communicator has shared memory.
  std::vector<Buffer> allocate(std::int64_t bytes) override {
    return inner_->shared_memory()->allocate(bytes);
  }
  [[nodiscard]] std::int64_t num_on_host() const override {
    return inner_->shared_memory()->num_on_host();
  }
  void signal(Counter& counter, std::uint64_t value) override {
    inner_->shared_memory()->signal(counter, value);
  }
  Request wait_signals(std::vector<Awaited> awaited, OpContext context) override {
    return inner_->shared_memory()->wait_signals(std::move(awaited), std::move(context));
  }

  // Where the other communicator is elastic.
  [[nodiscard]] Membership membership() const override { return inner_->elastic()->membership(); }
  void admit(bool admits) override { inner_->elastic()->admit(admits); }
  Membership reconfigure(std::int64_t step) override {
    drop_subgroups();
    return inner_->elastic()->reconfigure(step);
  }

 private:
  Communicator* inner_;
};

}  // namespace gossamer
