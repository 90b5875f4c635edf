#include "core/lanes/shard_lane.hpp"

#include <utility>
#include <vector>

#include "comm/communicator.hpp"
#include "core/lanes/shard.hpp"

namespace gossamer {
namespace {

class ShardLane : public Lane {
 public:
  ShardLane(const LaneSetup& setup, const LaneSpec& spec) : setup_(setup), spec_(spec) {
    if (setup.stream.on_host()) return;
    for (int place = 0; place < setup.communicator.size(); ++place) {
      reserved_.push_back(setup.communicator.reserve(shard(place).numel, spec.dtype, 1));
    }
  }

  void start(std::int64_t k, const Buffer& send) override {
    round_ = k;
    Communicator& ranks = setup_.communicator;
    const Block own = part_of(send.block(), shard(ranks.rank()));
    arriving_ = {{gathers() ? send.block() : own, 1.0}};
    has_arrived_ = true;
    const EventPtr ready = setup_.stream.record();
    // The shards differ in size, so each is an operation of its own.
    for (int place = 0; place < ranks.size(); ++place) {
      const Block part = part_of(send.block(), shard(place));
      if (part.numel == 0) continue;
      OpContext context{
          .label = {.what = gathers() ? "gather" : "reduction", .bucket = spec_.bucket, .round = k},
          .owner = send.owner(),
          .ready = ready,
          .trace = OpTrace(setup_.timeline, part.bytes())};
      requests_.push_back(gathers() ? ranks.broadcast(part, place, std::move(context))
                                    : ranks.reduce_sum(part, place, std::move(context)));
    }
    // A rank sends its own shard to all others, or to each of them the other's shard.
    setup_.metrics.bytes_sent += static_cast<double>(
        gathers() ? own.bytes() * (ranks.size() - 1) : send.block().bytes() - own.bytes());
  }

  void wait() override {
    if (requests_.empty()) return;
    const ScopedTimer timer(setup_.metrics.wait_s);
    const TimelineScope scope(setup_.timeline.get(),
                              {.what = "wait", .bucket = spec_.bucket, .round = round_});
    for (Request& request : requests_) request.wait_on(setup_.stream);
    requests_.clear();
  }

  Intake take() override {
    if (!std::exchange(has_arrived_, false)) return {};
    return {.keep = 0.0, .inboxes = arriving_};
  }

  void forget() override { has_arrived_ = false; }

 private:
  [[nodiscard]] bool gathers() const { return spec_.result == LaneResult::kGather; }
  [[nodiscard]] Shard shard(int place) const {
    return shard_of(spec_.numel, spec_.dtype, place, setup_.communicator.size());
  }

  const LaneSetup& setup_;
  LaneSpec spec_;
  std::vector<Inbox> arriving_;
  std::vector<Request> requests_;
  /// What the communicator needs for the messages.
  std::vector<std::shared_ptr<void>> reserved_;
  bool has_arrived_ = false;
  std::int64_t round_ = -1;
};

}  // namespace

std::unique_ptr<Lane> make_shard_lane(const LaneSetup& setup, const LaneSpec& spec) {
  return std::make_unique<ShardLane>(setup, spec);
}

}  // namespace gossamer
