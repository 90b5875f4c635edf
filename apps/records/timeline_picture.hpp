#pragma once
// A picture of a timeline (gossamer train --timeline): a few steps of all ranks, as SVG. Each rank
// has a row for the computing thread and a row for the wire. No state; any thread may call.

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace gossamer::apps {

/// The colour of a kind of work, as `forward` or `wait`; as `#rrggbb`.
std::string color_of_kind(std::string_view kind);

/// Reads a file that StepTimeline has written. Null if there is no such file, or if it is no trace.
nlohmann::json read_trace(const std::string& path);

/// The picture as part of an HTML page with a title; empty if the trace has no step.
std::string timeline_figure(const nlohmann::json& trace, const std::string& title);

/// The picture as a file of its own; empty if the trace has no step.
std::string timeline_svg(const nlohmann::json& trace, const std::string& title);

}  // namespace gossamer::apps
