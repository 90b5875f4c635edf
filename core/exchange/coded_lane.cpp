#include "core/exchange/coded_lane.hpp"

#include <optional>
#include <utility>
#include <vector>

#include "core/exchange/plain_lane.hpp"
#include "optim/block_update.hpp"

namespace gossamer {
namespace {

class CodedLane : public PlainLane {
 public:
  CodedLane(const LaneSetup& setup, Peers& peers, const LaneSpec& spec,
            std::shared_ptr<const NextGrid> grid)
      : PlainLane(setup, peers, spec, /*encodes=*/!setup.codec->needs_grid()),
        next_(std::move(grid)),
        encoded_{.codec = *setup.codec->mixing()},
        // The worker mixes the sums of nodes, and knows no grid.
        coded_nodes_(messages(), setup.codec->needs_grid() ? nullptr : &encoded_) {
    if (setup.stream.on_host()) return;
    // Now, as RoundMessages does it for plain blocks.
    const RoundNeeds needs = peers.most_needs().single;
    encoded_.reserve(setup.stream, spec.numel, static_cast<std::size_t>(needs.inboxes));
    reserved_ = setup.communicator.reserve(encoded_.codec.encoded_bytes(spec.numel), DType::kUInt8,
                                           needs.carried);
  }

  void start(std::int64_t k, const Buffer& send) override {
    const RankRound& part = begin(k);
    const bool is_encoded = std::exchange(encoded_grid_, std::nullopt) == next_->grid;
    if (is_idle(part)) return;
    hold(send);
    const bool has_nodes = part.node_size > 1;
    const bool sums = part.kind == RankRound::Kind::kGroup;
    decodes_ = next_->grid && !sums && !has_nodes;
    // Sums hold more than one other rank's values.
    measures_ = next_->stats != nullptr && !sums && !has_nodes;
    if (decodes_ && !is_encoded) encode(send);
    expect(has_nodes  ? coded_nodes_.start(part, k, send, arriving())
           : decodes_ ? exchange_encoded(part)
                      : whole(exchange_blocks(part)));
    const bool codes = decodes_ || (has_nodes && coded_nodes_.encodes(part));
    const std::int64_t plain = send.block().bytes();
    messages().count(part, {plain, codes ? encoded_.codec.encoded_bytes(spec().numel) : plain});
  }

  Intake take() override {
    Intake intake = PlainLane::take();
    Coding& coding = intake.exchange.coding;
    if (decodes_ && next_->grid && !spec().is_rare) {
      // The next round is likely to be of the same kind.
      coding = coding_of_round();
      coding.encodes = true;
      coding.next_grid = *next_->grid;
      encoded_grid_ = next_->grid;
    }
    if (intake.inboxes.empty()) return intake;
    if (measures_) intake.exchange.stats = next_->stats;
    if (!decodes_) return intake;
    if (coding.codec == nullptr) coding = coding_of_round();
    coding.decodes = true;
    return intake;
  }

  void forget() override {
    PlainLane::forget();
    encoded_grid_.reset();
  }

 private:
  /// The block and the grid of the round that has arrived.
  [[nodiscard]] Coding coding_of_round() const {
    return {.codec = &encoded_.codec, .own = encoded_.own.block(), .grid = grid_};
  }

  /// Encodes a block that no update has encoded.
  void encode(const Buffer& send) {
    encoded_.reserve(setup().stream, spec().numel, 0);
    const TimelineScope scope(setup().timeline.get(),
                              {.what = "encode", .bucket = spec().bucket, .round = round()});
    enqueue_encode(
        setup().stream,
        {.codec = &encoded_.codec, .own = encoded_.own.block(), .next_grid = *next_->grid},
        send.block(), setup().simd);
  }

  Request exchange_encoded(const RankRound& part) {
    grid_ = *next_->grid;
    encoded_.reserve(setup().stream, spec().numel, part.receive_from.size());
    arriving() = {.keep = 1.0};
    for (std::size_t i = 0; i < part.take.size(); ++i) {
      arriving().inboxes.push_back({encoded_.inboxes[i].block(), part.take[i]});
    }
    return messages().exchange(part, encoded_.own.block(), encoded_.inboxes,
                               messages().context(round(), sent(), encoded_.all()));
  }

  std::shared_ptr<const NextGrid> next_;
  EncodedBlocks encoded_;
  /// Memory that the communicator keeps for encoded messages.
  std::shared_ptr<void> reserved_;
  NodeRound coded_nodes_;
  /// The grid of the round under way.
  Grid grid_ = {};
  /// The grid with which the update that uses the last Intake encodes the next block; null: it does
  /// not encode.
  std::optional<Grid> encoded_grid_;
  /// True: the blocks of the last round are encoded, and this rank's update decodes them.
  bool decodes_ = false;
  /// True: the update adds the differences of the round under way to the statistics.
  bool measures_ = false;
};

}  // namespace

std::unique_ptr<Lane> make_coded_lane(const LaneSetup& setup, Peers& peers, const LaneSpec& spec,
                                      std::shared_ptr<const NextGrid> grid) {
  return std::make_unique<CodedLane>(setup, peers, spec, std::move(grid));
}

}  // namespace gossamer
