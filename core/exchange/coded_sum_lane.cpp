#include "core/exchange/coded_sum_lane.hpp"

#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/communicator.hpp"
#include "core/exchange/coded_sum.hpp"
#include "core/exchange/operations_lane.hpp"

namespace gossamer {
namespace {

/// The messages of a rank's part in a sum: three for each rank, in memory that copies share.
class SumMessages {
 public:
  SumMessages(Stream& stream, const CodedSum& sum)
      : num_ranks_(sum.num_ranks()),
        bytes_(sum.message_bytes()),
        distance_(sum.message_distance()),
        memory_(stream.allocate(3 * num_ranks_ * distance_, DType::kUInt8)) {}

  /// This rank's shard for another rank.
  [[nodiscard]] Block sent(int rank) const { return message(rank); }
  /// Another rank's shard for this one.
  [[nodiscard]] Block heard(int rank) const { return message(num_ranks_ + rank); }
  /// The shards of all ranks for this one.
  [[nodiscard]] SummandRow all_heard() const { return {heard(0), distance_, num_ranks_}; }
  /// The sum of a rank's shards.
  [[nodiscard]] Block result(int rank) const { return message(2 * num_ranks_ + rank); }
  [[nodiscard]] const std::shared_ptr<void>& owner() const { return memory_.owner(); }

 private:
  [[nodiscard]] Block message(std::int64_t place) const {
    return part_of(memory_.block(), place * distance_, bytes_);
  }

  int num_ranks_;
  std::int64_t bytes_;
  std::int64_t distance_;
  Buffer memory_;
};

class CodedSumLane : public OperationsLane {
 public:
  CodedSumLane(const LaneSetup& setup, const SumCommunicators& communicators, const LaneSpec& spec)
      : OperationsLane(setup, spec),
        communicators_(communicators),
        sum_(*setup.codec, spec, communicators.shards.size()),
        messages_(setup.stream, sum_),
        result_(setup.stream.allocate(spec.numel, spec.dtype)) {
    arriving() = {.keep = 0.0, .inboxes = {{result_.block(), 1.0}}};
    if (setup.stream.on_host()) return;
    const std::int64_t num_others = sum_.num_ranks() - 1;
    reserved_ = communicators.shards.reserve(sum_.message_bytes(), DType::kUInt8,
                                             2 * num_others + sum_.num_ranks());
  }

  void start(std::int64_t k, const Buffer& send) override {
    begin(k);
    sent_ = send;
    encode(send.block());
    std::vector<Request> requests;
    requests.push_back(exchange_results(exchange_shards()));
    expect(std::move(requests));
    setup().metrics.bytes_sent += sum_.bytes_sent();
  }

  void wait() override {
    if (!is_under_way()) return;
    OperationsLane::wait();
    const TimelineScope scope(setup().timeline.get(),
                              {.what = "decode", .bucket = spec().bucket, .round = round()});
    for (int j = 0; j < sum_.num_ranks(); ++j) {
      sum_.decode(setup().stream, j, messages_.result(j), result_.block(), setup().simd);
    }
  }

  void accumulate_residual(const Block& to) override {
    for (int j = 0; j < sum_.num_ranks(); ++j) {
      sum_.accumulate_residual(setup().stream, j, sent_.block(), own_shard(j), to, setup().simd);
    }
    sum_.accumulate_residual_of_sum(setup().stream, rank(), messages_.all_heard(),
                                    messages_.result(rank()), to, setup().simd);
  }

 private:
  [[nodiscard]] int rank() const { return communicators_.shards.rank(); }
  /// This rank's shard for a rank, itself included.
  [[nodiscard]] Block own_shard(int rank) const {
    return rank == this->rank() ? messages_.heard(rank) : messages_.sent(rank);
  }

  void encode(const ConstBlock& block) {
    const TimelineScope scope(setup().timeline.get(),
                              {.what = "encode", .bucket = spec().bucket, .round = round()});
    for (int j = 0; j < sum_.num_ranks(); ++j) {
      sum_.encode(setup().stream, j, block, own_shard(j), setup().simd);
    }
  }

  [[nodiscard]] OpContext context_of(std::string_view what) const {
    return {.label = {.what = what, .bucket = spec().bucket, .round = round()},
            .owner = messages_.owner(),
            .trace = OpTrace(setup().timeline, sum_.message_bytes())};
  }

  /// Phase 1.
  Request exchange_shards() {
    const EventPtr encoded = setup().stream.record();
    const int size = sum_.num_ranks();
    std::vector<Request> requests;
    for (int i = 1; i < size; ++i) {
      const int to = (rank() + i) % size;
      const int from = (rank() + size - i) % size;
      OpContext context = context_of("reduce-scatter");
      context.ready = encoded;
      requests.push_back(communicators_.shards.exchange_with_neighbors(
          messages_.sent(to), {to}, {{from, messages_.heard(from)}}, std::move(context)));
    }
    return all_of(std::move(requests));
  }

  /// Phase 2, which starts after `shards`.
  Request exchange_results(const Request& shards) {
    OpContext context = context_of("all-gather");
    context.after = shards.state();
    context.prepare = adding();
    std::vector<int> others;
    std::vector<Incoming> incoming;
    for (int other = 0; other < sum_.num_ranks(); ++other) {
      if (other == rank()) continue;
      others.push_back(other);
      incoming.push_back({other, messages_.result(other)});
    }
    return communicators_.results.exchange_with_neighbors(
        messages_.result(rank()), std::move(others), std::move(incoming), std::move(context));
  }

  /// The work that adds the shards of all ranks.
  [[nodiscard]] std::function<EventPtr()> adding() const {
    return [stream = setup().communicator.stream(), sum = sum_, messages = messages_, rank = rank(),
            simd = setup().simd]() -> EventPtr {
      sum.add(*stream, rank, messages.all_heard(), messages.result(rank), simd);
      // If the operation fails, the stream may still use this memory when nothing else owns it.
      stream->keep(messages.owner());
      return stream->record();
    };
  }

  SumCommunicators communicators_;
  CodedSum sum_;
  SumMessages messages_;
  /// The block of the round.
  Buffer sent_;
  Buffer result_;
  /// Memory that the communicators keep for the messages of both phases.
  std::shared_ptr<void> reserved_;
};

}  // namespace

std::unique_ptr<Lane> make_coded_sum_lane(const LaneSetup& setup,
                                          const SumCommunicators& communicators,
                                          const LaneSpec& spec) {
  return std::make_unique<CodedSumLane>(setup, communicators, spec);
}

}  // namespace gossamer
