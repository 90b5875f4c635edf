#include "comm/elastic/elastic_transport.hpp"

#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/forwarding_communicator.hpp"

namespace gossamer {
namespace {

/// After so many failures in a row it is known that a world's communicator does not work.
constexpr int kMostFailures = 3;

class ElasticTransport : public ForwardingCommunicator {
 public:
  ElasticTransport(Communicator& host, std::shared_ptr<Stream> stream, MakeTransport make,
                   double sound_life_s)
      : ForwardingCommunicator(host),
        host_(host),
        stream_(std::move(stream)),
        make_(std::move(make)),
        sound_life_s_(sound_life_s) {}

  [[nodiscard]] const std::shared_ptr<Stream>& stream() override { return stream_; }
  [[nodiscard]] bool takes_device_memory() const override { return false; }
  /// A device's communicator shares no memory of the host.
  SharedMemory* shared_memory() override { return nullptr; }

  Request exchange(int peer, ConstBlock send, Block receive, OpContext context) override {
    return way_of(send).exchange(peer, send, receive, std::move(context));
  }
  Request exchange_with_neighbors(ConstBlock send, std::vector<int> peers,
                                  std::vector<Incoming> incoming, OpContext context) override {
    return way_of(send).exchange_with_neighbors(send, std::move(peers), std::move(incoming),
                                                std::move(context));
  }
  Request send(int peer, int tag, ConstBlock message, OpContext context) override {
    return way_of(message).send(peer, tag, message, std::move(context));
  }
  Request receive(int peer, int tag, Block message, OpContext context) override {
    return way_of(message).receive(peer, tag, message, std::move(context));
  }
  Request all_reduce_sum(ConstBlock send, Block receive, OpContext context) override {
    return way_of(send).all_reduce_sum(send, receive, std::move(context));
  }
  Request reduce_sum(Block block, int root, OpContext context) override {
    return way_of(block).reduce_sum(block, root, std::move(context));
  }
  Request broadcast(Block block, int root, OpContext context) override {
    return way_of(block).broadcast(block, root, std::move(context));
  }
  void connect() override { static_cast<void>(device()); }
  /// Not collective, so it has none before connect().
  std::shared_ptr<void> reserve(std::int64_t numel, DType dtype, std::int64_t num_blocks) override {
    return device_ ? device_->reserve(numel, dtype, num_blocks) : nullptr;
  }
  void check() override {
    host_.check();
    // reconfigure() does not take them away meanwhile.
    const std::lock_guard lock(mutex_);
    if (start_failure_) std::rethrow_exception(start_failure_);
    if (device_) device_->check();
  }
  std::unique_ptr<Communicator> split(int color) override { return device().split(color); }
  void close() override {
    if (!device_) return;
    try {
      device_->close();
    } catch (const PeerLost&) {
      // All have done their work: some may be gone already, one may have died.
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  Membership reconfigure(std::int64_t step) override {
    std::string failure = own_failure();
    const std::chrono::duration<double> lived = Clock::now() - made_;
    if (device_ && lived.count() > sound_life_s_) num_failures_ = 0;
    drop_subgroups();
    set(nullptr, nullptr);
    // What was aborted reads its blocks no more.
    stream_->synchronize();
    const std::vector<std::int64_t> before = membership().members;
    Membership reconfigured = host_.elastic()->reconfigure(step);
    // The device's communicator may notice first that a rank is gone.
    if (!failure.empty() && reconfigured.members == before) {
      ++num_failures_;
      flaw_ = std::move(failure);
    }
    return reconfigured;
  }

  Communicator& way_of(const ConstBlock& block) { return is_on_host(block) ? host_ : device(); }

  /// The communicator of the present world's devices. Collective where there are none yet.
  Communicator& device() {
    if (start_failure_) std::rethrow_exception(start_failure_);
    if (device_) return *device_;
    try {
      set(make(), nullptr);
    } catch (const PeerLost&) {
      set(nullptr, std::current_exception());
      throw;
    }
    made_ = Clock::now();
    return *device_;
  }

  std::unique_ptr<Communicator> make() {
    try {
      return make_(host_, num_failures_ < kMostFailures ? "" : flaw_);
    } catch (const ConfigError& error) {
      const int last = size() - 1;
      if (membership().epoch == 0 || rank() == last) throw;
      misfit_ = true;
      throw PeerLost({.rank = rank(),
                      .peers = {last},
                      .label = {.what = "start of the device's communicator"}},
                     error.what());
    }
  }

  void set(std::unique_ptr<Communicator> device, std::exception_ptr start_failure) {
    const std::lock_guard lock(mutex_);
    start_failure_ = std::move(start_failure);
    device_ = std::move(device);
  }

  /// Why the device's communicator has failed although the host's has not; empty: it has not.
  [[nodiscard]] std::string own_failure() {
    // A newcomer's device is not a failure of the other ranks.
    if (std::exchange(misfit_, false)) return "";
    try {
      host_.check();
    } catch (const CommError&) {
      return "";
    }
    try {
      check();
    } catch (const CommError& error) {
      return error.reason();
    }
    return "";
  }

  Communicator& host_;
  std::shared_ptr<Stream> stream_;
  MakeTransport make_;
  double sound_life_s_;
  /// For check(), which any thread may call; the rank's thread alone writes both.
  std::mutex mutex_;
  /// The communicator of the devices; null where the present world has none yet.
  std::unique_ptr<Communicator> device_;
  std::exception_ptr start_failure_;
  /// When they were made.
  Clock::time_point made_;
  bool misfit_ = false;
  int num_failures_ = 0;
  std::string flaw_;
};

}  // namespace

std::unique_ptr<Communicator> make_transport(Communicator& host, std::shared_ptr<Stream> stream,
                                             MakeTransport make, double sound_life_s) {
  if (!host.is_elastic()) return make(host, "");
  return std::make_unique<ElasticTransport>(host, std::move(stream), std::move(make), sound_life_s);
}

}  // namespace gossamer
