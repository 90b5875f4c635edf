#pragma once
// The lane of LaneResult::kMix, kMean and kSum, and of kApart without a tree, over a Communicator:
// it sends blocks as they are, and receives into inboxes that it owns. The lanes of slots
// (slot_lane.hpp) and of encoded blocks (coded_lane.hpp) are variants of it. Protocol, errors and
// thread safety: lane.hpp.

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/exchange/block_checksum.hpp"
#include "core/exchange/node_round.hpp"
#include "core/exchange/round_messages.hpp"

namespace gossamer {

class PlainLane : public Lane {
 public:
  /// `peers` knows the ranks of every round. `setup` and all that it refers to must outlive the
  /// lane, and so must `peers`. `encodes`: as in RoundMessages.
  PlainLane(const LaneSetup& setup, Peers& peers, const LaneSpec& spec, bool encodes = false)
      : messages_(setup, peers, spec, encodes), nodes_(messages_) {}

  void start(std::int64_t k, const Buffer& send) override;
  void wait() override { finish({}); }
  Intake take() override;
  Intake receive() override;
  void forget() override { has_arrived_ = false; }
  void visit(StateVisitor& visitor, std::span<const std::string> names) override;

 protected:
  /// This rank's part in round k, which begins.
  const RankRound& begin(std::int64_t k);
  /// The block of the round, in which this rank takes part.
  void hold(const Buffer& send) { sent_ = send; }
  /// Exchanges the block in a round of one level.
  std::vector<PartUnderWay> exchange_blocks(const RankRound& part);
  /// The round's messages are under way.
  void expect(std::vector<PartUnderWay> parts);
  void expect(Request request);
  /// Waits for `also` and for the messages of the round.
  void finish(Request also);

  [[nodiscard]] const LaneSetup& setup() const { return messages_.setup(); }
  [[nodiscard]] const LaneSpec& spec() const { return messages_.spec(); }
  /// The last round that was started.
  [[nodiscard]] std::int64_t round() const { return round_; }
  [[nodiscard]] const Buffer& sent() const { return sent_; }
  [[nodiscard]] RoundMessages& messages() { return messages_; }
  [[nodiscard]] NodeRound& nodes() { return nodes_; }
  /// The Intake of the last round in which this rank has taken part.
  [[nodiscard]] Arriving& arriving() { return arriving_; }

 private:
  [[nodiscard]] bool is_under_way() const { return num_over_ < parts_.size(); }
  /// Waits for the next part.
  void finish_part();
  /// Waits for the next part, and takes the parts that are there. Returns how many elements are.
  std::int64_t wait_for_more();
  [[nodiscard]] OpLabel wait_label() const {
    return {.what = "wait", .bucket = spec().bucket, .round = round_};
  }

  RoundMessages messages_;
  NodeRound nodes_;
  Buffer sent_;
  /// The parts of the block, and how many of them have been waited for.
  std::vector<PartUnderWay> parts_;
  std::size_t num_over_ = 0;
  Arriving arriving_;
  bool has_arrived_ = false;
  double update_scale_ = 1.0;
  std::int64_t round_ = -1;
  /// The checksums, one for each part.
  std::vector<std::shared_ptr<BlockChecksum>> checksums_;
};

}  // namespace gossamer
