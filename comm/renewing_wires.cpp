#include "comm/renewing_wires.hpp"

#include <chrono>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

/// After so many failures in a row it is known that a world's communicator does not work.
constexpr int kMostFailures = 3;
/// One that has worked for so long is sound.
constexpr std::chrono::seconds kSoundLife{60};

class RenewingWires : public Communicator {
 public:
  RenewingWires(Communicator& host, std::shared_ptr<Stream> stream, MakeWires make)
      : host_(host), stream_(std::move(stream)), make_(std::move(make)) {}

  [[nodiscard]] int rank() const override { return host_.rank(); }
  [[nodiscard]] int size() const override { return host_.size(); }
  [[nodiscard]] const std::vector<int>& world_ranks() const override { return host_.world_ranks(); }
  [[nodiscard]] const std::shared_ptr<Stream>& stream() override { return stream_; }

  Request exchange(int peer, ConstBlock send, Block receive, OpContext context) override {
    return way_of(send).exchange(peer, send, receive, std::move(context));
  }
  Request exchange_with_neighbors(ConstBlock send, std::vector<int> peers,
                                  std::vector<Incoming> incoming, OpContext context) override {
    return way_of(send).exchange_with_neighbors(send, std::move(peers), std::move(incoming),
                                                std::move(context));
  }
  Request send(int peer, int tag, ConstBlock letter, OpContext context) override {
    return way_of(letter).send(peer, tag, letter, std::move(context));
  }
  Request receive(int peer, int tag, Block letter, OpContext context) override {
    return way_of(letter).receive(peer, tag, letter, std::move(context));
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
  /// Not collective, so it has none where nothing has been exchanged yet.
  std::shared_ptr<void> reserve(std::int64_t numel, DType dtype, std::int64_t num_blocks) override {
    return wires_ ? wires_->reserve(numel, dtype, num_blocks) : nullptr;
  }
  std::vector<std::string> all_gather(std::string text) override {
    return host_.all_gather(std::move(text));
  }
  void check() override {
    host_.check();
    std::shared_ptr<Communicator> wires;
    {
      const std::lock_guard lock(mutex_);
      wires = wires_;
    }
    if (wires) wires->check();
  }
  [[nodiscard]] double worker_cpu_s() override { return host_.worker_cpu_s(); }
  void barrier() override { host_.barrier(); }
  std::unique_ptr<Communicator> split(int color) override { return wires().split(color); }
  [[nodiscard]] bool renews() const override { return true; }
  [[nodiscard]] Membership membership() const override { return host_.membership(); }

  bool admit(bool admits) override { return host_.admit(admits); }
  Membership renew(std::int64_t step) override {
    count_failure();
    drop_parts();
    set_wires(nullptr);
    has_renewed_ = true;
    return host_.renew(step);
  }

  void close() override {
    if (!wires_) return;
    try {
      wires_->close();
    } catch (const PeerLost&) {
      // All have done their work: some may be gone already, one may have died.
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  Communicator& way_of(const ConstBlock& block) { return is_on_host(block) ? host_ : wires(); }

  /// Those of the present world. Collective where there are none yet.
  Communicator& wires() {
    if (!wires_) set_wires(made());
    return *wires_;
  }

  std::unique_ptr<Communicator> made() {
    // A start that fails counts as well.
    began_ = Clock::now();
    try {
      return make_(host_, num_failures_ < kMostFailures ? "" : flaw_);
    } catch (const PeerLost& error) {
      start_failure_ = error.reason();
      throw;
    } catch (const ConfigError& error) {
      const int last = size() - 1;
      if (!has_renewed_ || rank() == last) throw;
      throw PeerLost({.rank = rank(), .peers = {last}, .label = {.what = "start of the wires"}},
                     error.what());
    }
  }

  void set_wires(std::shared_ptr<Communicator> wires) {
    const std::lock_guard lock(mutex_);
    // The old ones go without the lock.
    wires_.swap(wires);
  }

  /// Why the device's communicator has failed although all ranks live; empty: it has not.
  [[nodiscard]] std::string own_failure() {
    try {
      host_.check();
    } catch (const CommError&) {
      return "";
    }
    if (!wires_) return start_failure_;
    try {
      wires_->check();
    } catch (const CommError& error) {
      return error.reason();
    }
    return "";
  }

  void count_failure() {
    std::string flaw = own_failure();
    start_failure_.clear();
    if (Clock::now() - began_ > kSoundLife) num_failures_ = 0;
    if (flaw.empty()) return;
    ++num_failures_;
    flaw_ = std::move(flaw);
  }

  Communicator& host_;
  std::shared_ptr<Stream> stream_;
  MakeWires make_;
  /// For check(), which any thread may call.
  std::mutex mutex_;
  /// Null where the present world has none yet. The rank's thread alone sets it.
  std::shared_ptr<Communicator> wires_;
  Clock::time_point began_;
  bool has_renewed_ = false;
  std::string start_failure_;
  int num_failures_ = 0;
  std::string flaw_;
};

}  // namespace

std::unique_ptr<Communicator> make_renewing_wires(Communicator& host,
                                                  std::shared_ptr<Stream> stream, MakeWires make) {
  return std::make_unique<RenewingWires>(host, std::move(stream), std::move(make));
}

}  // namespace gossamer
