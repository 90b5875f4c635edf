#include "core/exchange/gathered_sum_lane.hpp"

#include <utility>
#include <vector>

#include "comm/communicator.hpp"
#include "core/exchange/coded_sum.hpp"
#include "core/exchange/operations_lane.hpp"

namespace gossamer {
namespace {

class GatheredSumLane : public OperationsLane {
 public:
  GatheredSumLane(const LaneSetup& setup, const LaneSpec& spec)
      : OperationsLane(setup, spec),
        sum_(*setup.codec, spec, setup.communicator.size()),
        messages_(setup.stream.allocate(sum_.num_ranks() * sum_.message_distance(), DType::kUInt8)),
        result_(setup.stream.allocate(spec.numel, spec.dtype)) {
    arriving() = {.keep = 0.0, .inboxes = {{result_.block(), 1.0}}};
    if (setup.stream.on_host()) return;
    reserved_ = setup.communicator.reserve(sum_.message_bytes(), DType::kUInt8, sum_.num_ranks());
  }

  void start(std::int64_t k, const Buffer& send) override {
    begin(k);
    sent_ = send;
    const TimelineScope scope(setup().timeline.get(),
                              {.what = "encode", .bucket = spec().bucket, .round = k});
    sum_.encode(setup().stream, 0, send.block(), message(rank()), setup().simd);
    std::vector<Request> requests;
    requests.push_back(exchange());
    expect(std::move(requests));
    setup().metrics.bytes_sent += sum_.bytes_sent();
  }

  void wait() override {
    if (!is_under_way()) return;
    OperationsLane::wait();
    const TimelineScope scope(setup().timeline.get(),
                              {.what = "decode", .bucket = spec().bucket, .round = round()});
    sum_.gather(setup().stream, {message(0), sum_.message_distance(), sum_.num_ranks()},
                result_.block(), setup().simd);
  }

  void accumulate_residual(const Block& to) override {
    sum_.accumulate_residual(setup().stream, 0, sent_.block(), message(rank()), to, setup().simd);
  }

 private:
  [[nodiscard]] int rank() const { return setup().communicator.rank(); }
  /// The encoded block of a rank.
  [[nodiscard]] Block message(std::int64_t rank) const {
    return part_of(messages_.block(), rank * sum_.message_distance(), sum_.message_bytes());
  }

  Request exchange() {
    OpContext context{.label = {.what = "all-gather", .bucket = spec().bucket, .round = round()},
                      .owner = messages_.owner(),
                      .ready = setup().stream.record(),
                      .trace = OpTrace(setup().timeline, sum_.message_bytes())};
    std::vector<int> others;
    std::vector<Incoming> incoming;
    for (int other = 0; other < sum_.num_ranks(); ++other) {
      if (other == rank()) continue;
      others.push_back(other);
      incoming.push_back({other, message(other)});
    }
    return setup().communicator.exchange_with_neighbors(message(rank()), std::move(others),
                                                        std::move(incoming), std::move(context));
  }

  CodedSum sum_;
  /// One for each rank.
  Buffer messages_;
  Buffer result_;
  /// The block of the round.
  Buffer sent_;
  /// Memory that the communicator keeps for the messages.
  std::shared_ptr<void> reserved_;
};

}  // namespace

std::unique_ptr<Lane> make_gathered_sum_lane(const LaneSetup& setup, const LaneSpec& spec) {
  return std::make_unique<GatheredSumLane>(setup, spec);
}

}  // namespace gossamer
