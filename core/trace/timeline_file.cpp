#include "core/trace/timeline_file.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/text.hpp"

namespace gossamer {
namespace {

using TraceJson = nlohmann::ordered_json;
using Row = TimelineSpan::Row;

/// A row of the picture: a bucket, and the number of its thread.
using WireRow = std::pair<std::int64_t, std::size_t>;

/// The row of each span of the wire: the first of its bucket that is free. `spans` begin in order.
std::vector<WireRow> wire_rows(const std::vector<TimelineSpan>& spans) {
  std::map<std::int64_t, std::vector<std::int64_t>> ends;
  std::vector<WireRow> rows;
  for (const TimelineSpan& span : spans) {
    std::vector<std::int64_t>& of_bucket = ends[span.label.bucket];
    const auto is_free = [&span](std::int64_t end) { return end <= span.start_ns; };
    const auto place = std::ranges::find_if(of_bucket, is_free);
    const auto number = static_cast<std::size_t>(place - of_bucket.begin());
    if (place == of_bucket.end()) of_bucket.push_back(0);
    of_bucket[number] = span.end_ns;
    rows.emplace_back(span.label.bucket, number);
  }
  return rows;
}

TraceJson metadata(const char* name, int rank, int thread, const TraceJson& arguments) {
  return {{"name", name}, {"ph", "M"}, {"pid", rank}, {"tid", thread}, {"args", arguments}};
}

/// An event with its times in nanoseconds.
TraceJson event_of(const TimelineSpan& span, int rank, int thread) {
  const OpLabel& label = span.label;
  TraceJson arguments = TraceJson::object();
  if (span.step >= 0) arguments["step"] = span.step;
  if (label.bucket >= 0) arguments["bucket"] = label.bucket;
  if (label.round >= 0) arguments["round"] = label.round;
  if (span.row == Row::kWire) {
    arguments["peers"] = span.known_peers();
    if (span.num_peers > std::ssize(span.known_peers())) arguments["num_peers"] = span.num_peers;
    arguments["bytes"] = span.bytes;
  }
  const bool is_step = label.what == "step";
  return {{"name", is_step ? concat("step ", span.step) : std::string(label.what)},
          {"cat", label.what},
          {"ph", "X"},
          {"ts", span.start_ns},
          {"dur", span.end_ns - span.start_ns},
          {"pid", rank},
          {"tid", thread},
          {"args", std::move(arguments)}};
}

/// Microseconds, which is the unit of the format.
double microseconds(std::int64_t ns) { return static_cast<double>(ns) / 1e3; }

TraceJson describe(const ClockReading& reading) {
  return {{"offset_us", microseconds(reading.offset_ns)},
          {"round_trip_us", microseconds(reading.round_trip_ns)}};
}

}  // namespace

std::string rank_trace(int rank, const std::string& rank_name, const Timeline& timeline,
                       const ClockMap& clock) {
  std::vector<TimelineSpan> computing;
  std::vector<TimelineSpan> wire;
  for (TimelineSpan span : timeline.spans()) {
    span.start_ns = clock.time_of_rank_0(span.start_ns);
    span.end_ns = clock.time_of_rank_0(span.end_ns);
    (span.row == Row::kWire ? wire : computing).push_back(span);
  }
  std::ranges::sort(wire, {},
                    [](const TimelineSpan& span) { return std::pair(span.start_ns, span.end_ns); });
  const std::vector<WireRow> rows = wire_rows(wire);
  std::map<WireRow, int> threads;
  for (const WireRow& row : rows) threads[row] = 0;
  TraceJson events = TraceJson::array();
  events.push_back(metadata("process_name", rank, 0, {{"name", rank_name}}));
  events.push_back(metadata("process_sort_index", rank, 0, {{"sort_index", rank}}));
  events.push_back(metadata("thread_name", rank, 0, {{"name", "compute"}}));
  int number = 0;
  for (auto& [row, thread] : threads) {
    thread = ++number;
    const std::string copy = row.second > 0 ? concat(" (", row.second + 1, ")") : "";
    const std::string name = concat("wire, bucket ", row.first, copy);
    events.push_back(metadata("thread_name", rank, thread, {{"name", name}}));
    events.push_back(metadata("thread_sort_index", rank, thread, {{"sort_index", thread}}));
  }
  for (const TimelineSpan& span : computing) events.push_back(event_of(span, rank, 0));
  for (std::size_t i = 0; i < wire.size(); ++i) {
    events.push_back(event_of(wire[i], rank, threads.at(rows[i])));
  }
  return TraceJson{{"events", std::move(events)},
                   {"dropped", timeline.num_dropped()},
                   {"clock", {describe(clock.first()), describe(clock.last())}}}
      .dump();
}

MergedTrace merge_traces(const std::vector<std::string>& ranks, const std::string& about_run) {
  std::vector<TraceJson> events;
  TraceJson clocks = TraceJson::array();
  MergedTrace merged;
  std::int64_t origin = std::numeric_limits<std::int64_t>::max();
  for (const std::string& text : ranks) {
    TraceJson rank = TraceJson::parse(text);
    merged.num_dropped += rank["dropped"].get<std::int64_t>();
    clocks.push_back(std::move(rank["clock"]));
    for (TraceJson& event : rank["events"]) {
      if (event["ph"] == "X") {
        ++merged.num_spans;
        origin = std::min(origin, event["ts"].get<std::int64_t>());
      }
      events.push_back(std::move(event));
    }
  }
  std::string lines;
  for (TraceJson& event : events) {
    if (event["ph"] == "X") {
      event["ts"] = microseconds(event["ts"].get<std::int64_t>() - origin);
      event["dur"] = microseconds(event["dur"].get<std::int64_t>());
    }
    lines += concat(lines.empty() ? "\n" : ",\n", event.dump());
  }
  const TraceJson about = {{"about", about_run},
                           {"dropped_spans", merged.num_dropped},
                           {"clock_at_begin_and_end_of_each_rank", std::move(clocks)}};
  // A folder may have a name that is no UTF-8.
  const std::string other = about.dump(-1, ' ', false, TraceJson::error_handler_t::replace);
  merged.json = concat(R"({"displayTimeUnit":"ms","otherData":)", other, R"(,"traceEvents":[)",
                       lines, "\n]}\n");
  return merged;
}

}  // namespace gossamer
