#pragma once
// The common part of lanes whose round is one or several operations that start at once and are
// waited for together. Such lanes make the rounds of trees, of shards, and of sums under a codec.
// Protocol, errors and thread safety: lane.hpp.

#include <cstdint>
#include <utility>
#include <vector>

#include "comm/request.hpp"
#include "core/exchange/lane.hpp"
#include "core/exchange/lane_setup.hpp"
#include "core/exchange/round_messages.hpp"

namespace gossamer {

class OperationsLane : public Lane {
 public:
  void wait() override;
  Intake take() override;
  void forget() override { has_arrived_ = false; }

 protected:
  /// `setup` and all that it refers to must outlive the lane.
  OperationsLane(const LaneSetup& setup, const LaneSpec& spec) : setup_(setup), spec_(spec) {}

  /// Round k begins.
  void begin(std::int64_t k) { round_ = k; }
  /// Takes the requests of the round's operations, which are under way. arriving() returns the
  /// Intake that they bring.
  void expect(std::vector<Request> requests) {
    requests_ = std::move(requests);
    has_arrived_ = true;
  }

  [[nodiscard]] const LaneSetup& setup() const { return setup_; }
  [[nodiscard]] const LaneSpec& spec() const { return spec_; }
  /// The last round that was started.
  [[nodiscard]] std::int64_t round() const { return round_; }
  /// True from expect() to wait(), if there are operations.
  [[nodiscard]] bool is_under_way() const { return !requests_.empty(); }
  [[nodiscard]] Arriving& arriving() { return arriving_; }

 private:
  const LaneSetup& setup_;
  LaneSpec spec_;
  std::vector<Request> requests_;
  Arriving arriving_;
  bool has_arrived_ = false;
  std::int64_t round_ = -1;
};

}  // namespace gossamer
