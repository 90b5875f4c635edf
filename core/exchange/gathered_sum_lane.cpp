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
  }

  void start(std::int64_t k, const Buffer& send) override {
    begin(k);
    sent_ = send;
    const TimelineScope scope(setup().timeline.get(),
                              {.what = "encode", .bucket = spec().bucket, .round = k});
    setup().stream.run([sum = sum_, send, own = message(rank()), simd = setup().simd] {
      sum.encode(0, send.block(), own, simd);
    });
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
    std::vector<ConstBlock> all;
    for (int rank = 0; rank < sum_.num_ranks(); ++rank) all.emplace_back(message(rank));
    setup().stream.run([sum = sum_, all = std::move(all), memory = messages_, result = result_,
                        simd = setup().simd] { sum.gather(all, result.block(), simd); });
  }

  void accumulate_residual(const Block& to) override {
    setup().stream.run(
        [sum = sum_, memory = messages_, own = message(rank()), sent = sent_, to,
         simd = setup().simd] { sum.accumulate_residual(0, sent.block(), own, to, simd); });
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
};

}  // namespace

std::unique_ptr<Lane> make_gathered_sum_lane(const LaneSetup& setup, const LaneSpec& spec) {
  return std::make_unique<GatheredSumLane>(setup, spec);
}

}  // namespace gossamer
