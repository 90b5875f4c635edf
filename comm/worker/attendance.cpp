#include "comm/worker/attendance.hpp"

#include "base/text.hpp"

namespace gossamer {

std::string Attendance::behind(const std::vector<int>& peers) const {
  if (std::ranges::any_of(peers, [this](int peer) { return num_steps(peer) < 0; })) return "";
  int first = -1;
  int last = -1;
  for (int rank = 0; rank < static_cast<int>(num_told_.size()); ++rank) {
    const std::int64_t steps = num_steps(rank);
    if (steps < 0) continue;
    if (first < 0 || steps > num_steps(first)) first = rank;
    if (last < 0 || steps < num_steps(last)) last = rank;
  }
  if (first < 0) return "";
  const std::int64_t most = num_steps(first);
  const std::int64_t least = num_steps(last);
  if (least >= most) return "";
  return concat("rank ", last, " is ", most - least, most - least == 1 ? " step" : " steps",
                " behind: it has begun ", least, ", and rank ", first, " has begun ", most,
                ". Either it is slow, or it has left out a batch: a rank without a batch calls "
                "finish_step()");
}

}  // namespace gossamer
