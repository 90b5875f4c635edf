#pragma once
// The exchanges of a schedule as work of links. Not thread safe.

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "apps/lab/plan/exchange_schedule.hpp"
#include "apps/lab/plan/traffic.hpp"
#include "optim/codec.hpp"
#include "topology/topology.hpp"

namespace gossamer::apps {

class ScheduledTraffic {
 public:
  /// `topology` may be null if no exchange follows one; `codec` is the schedule's. All must outlive
  /// this object.
  ScheduledTraffic(const ExchangeSchedule& schedule, const LinkTable& links,
                   const Topology* topology, const Codec* codec)
      : schedule_(schedule), links_(links), topology_(topology), codec_(codec) {}

  /// The traffic is null where the bucket sends nothing in this step, and valid as long as this
  /// object.
  const Traffic* of(std::int64_t step, std::int64_t bucket);

 private:
  const Traffic* find(std::int64_t step, std::int64_t bucket);
  [[nodiscard]] Traffic part_of(const PlannedExchange& exchange) const;

  const ExchangeSchedule& schedule_;
  const LinkTable& links_;
  const Topology* topology_;
  const Codec* codec_;
  /// The traffic by exchanges, with the rounds of the topology's period.
  std::map<std::vector<PlannedExchange>, Traffic> known_;
  /// The answers for [step][bucket]: all ranks ask for the same.
  std::vector<std::vector<std::optional<const Traffic*>>> answers_;
};

}  // namespace gossamer::apps
