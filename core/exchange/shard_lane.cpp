#include "core/exchange/shard_lane.hpp"

#include <string_view>
#include <utility>
#include <vector>

#include "comm/communicator.hpp"
#include "core/exchange/operations_lane.hpp"
#include "core/exchange/shard.hpp"

namespace gossamer {
namespace {

class ShardLane : public OperationsLane {
 public:
  ShardLane(const LaneSetup& setup, const LaneSpec& spec) : OperationsLane(setup, spec) {
    for (int place = 0; place < setup.communicator.size(); ++place) {
      reserved_.push_back(setup.communicator.reserve(shard(place).numel, spec.dtype, 1));
    }
  }

  void start(std::int64_t k, const Buffer& send) override {
    begin(k);
    Communicator& ranks = setup().communicator;
    const Block own = part_of(send.block(), shard(ranks.rank()));
    arriving() = {.keep = 0.0, .inboxes = {{gathers() ? send.block() : own, 1.0}}};
    const EventPtr ready = setup().stream.record();
    std::vector<Request> requests;
    // The shards differ in size, so each is an operation of its own.
    for (int place = 0; place < ranks.size(); ++place) {
      const Block part = part_of(send.block(), shard(place));
      if (part.numel == 0) continue;
      const std::string_view what = gathers() ? "gather" : "reduction";
      OpContext context{.label = {.what = what, .bucket = spec().bucket, .round = k},
                        .owner = send.owner(),
                        .ready = ready,
                        .trace = OpTrace(setup().timeline, part.bytes())};
      requests.push_back(gathers() ? ranks.broadcast(part, place, std::move(context))
                                   : ranks.reduce_sum(part, place, std::move(context)));
    }
    expect(std::move(requests));
    // A rank sends its own shard to all others, or to each of them the other's shard.
    setup().metrics.bytes_sent += static_cast<double>(
        gathers() ? own.bytes() * (ranks.size() - 1) : send.block().bytes() - own.bytes());
  }

 private:
  [[nodiscard]] bool gathers() const { return spec().result == LaneResult::kGather; }
  [[nodiscard]] Shard shard(int place) const {
    return shard_of(spec().numel, spec().dtype, place, setup().communicator.size(),
                    spec().shard_borders, spec().bucket);
  }

  /// What the communicator needs for the messages.
  std::vector<std::shared_ptr<void>> reserved_;
};

}  // namespace

std::unique_ptr<Lane> make_shard_lane(const LaneSetup& setup, const LaneSpec& spec) {
  return std::make_unique<ShardLane>(setup, spec);
}

}  // namespace gossamer
