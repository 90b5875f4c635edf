#include "core/gather_lane.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "comm/communicator.hpp"

namespace gossamer {
namespace {

class GatherLane : public Lane {
 public:
  GatherLane(const PeerLanes::Setup& setup, const LaneSpec& spec) : setup_(setup), spec_(spec) {}

  void start(std::int64_t k, const Buffer& send) override {
    round_ = k;
    arriving_ = {{send.block(), 1.0}};
    has_arrived_ = true;
    const auto part = [&](int place) {
      const Shard shard = shard_of(spec_.numel, spec_.dtype, place, setup_.communicator.size());
      return part_of(send.block(), shard.first, shard.numel);
    };
    const EventPtr ready = setup_.stream.record();
    const int size = setup_.communicator.size();
    // The shards differ in size, and an exchange takes blocks of one size.
    for (int place = 0; place < size; ++place) {
      const Block shard = part(place);
      if (shard.numel == 0) continue;
      requests_.push_back(setup_.communicator.broadcast(
          shard, place,
          {.label = {.what = "gather", .bucket = spec_.bucket, .round = k},
           .owner = send.owner(),
           .ready = ready,
           .trace = OpTrace(setup_.timeline, shard.bytes())}));
    }
    setup_.metrics.bytes_sent +=
        static_cast<double>(part(setup_.communicator.rank()).bytes() * (size - 1));
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
  const PeerLanes::Setup& setup_;
  LaneSpec spec_;
  std::vector<Inbox> arriving_;
  std::vector<Request> requests_;
  bool has_arrived_ = false;
  std::int64_t round_ = -1;
};

}  // namespace

Shard shard_of(std::int64_t numel, DType dtype, int place, int count) {
  constexpr std::int64_t kCacheLine = 64;
  const std::int64_t line = kCacheLine / size_of(dtype);
  const std::int64_t num_lines = (numel + line - 1) / line;
  const auto begin = [&](std::int64_t i) { return std::min(numel, num_lines * i / count * line); };
  return {.first = begin(place), .numel = begin(place + 1) - begin(place)};
}

std::unique_ptr<Lane> make_gather_lane(const PeerLanes::Setup& setup, const LaneSpec& spec) {
  return std::make_unique<GatherLane>(setup, spec);
}

}  // namespace gossamer
