#pragma once
// The timelines of all ranks as one file in Chrome's trace event format, which Perfetto
// (https://ui.perfetto.dev) opens.
//
// Each rank is a process of the trace. Its thread 0 is the computing thread. Each bucket has a
// thread for its messages, and further threads where several of its messages are in flight at once.
// So two spans of a thread lie apart, or one lies inside the other.
//
// No state; any thread may call.

#include <string>
#include <vector>

#include "base/timeline.hpp"
#include "comm/collectives/clock_offset.hpp"

namespace gossamer {

/// The timeline of one rank in the form in which it travels to the rank that writes the file. Its
/// times are on rank 0's clock. The file names this rank `rank_name`.
std::string rank_trace(int rank, const std::string& rank_name, const Timeline& timeline,
                       const ClockMap& clock);

struct MergedTrace {
  /// The content of the file.
  std::string json;
  /// Number of spans that the file has.
  std::int64_t num_spans = 0;
  /// Number of spans that found no room, of all ranks.
  std::int64_t num_dropped = 0;
};

/// Puts together what rank_trace() has returned on each rank. Times begin with the first span.
/// `about` stands in the file as otherData.about.
MergedTrace merge_traces(const std::vector<std::string>& ranks, const std::string& about);

}  // namespace gossamer
