#include "apps/lab/plan/plan_row.hpp"

#include "apps/lab/plan/ways.hpp"
#include "base/text.hpp"

namespace gossamer::apps {

bool PlanRow::helps() const { return !expected_gap || *expected_gap < kAloneGap; }

std::string PlanRow::label() const {
  std::string text = exchange;
  if (!topology.empty()) text += concat(" on ", topology);
  text += concat(", ", codec);
  if (every > 1) text += concat(", every ", every, " steps");
  if (late > 1) text += concat(", late ", late);
  return text;
}

}  // namespace gossamer::apps
