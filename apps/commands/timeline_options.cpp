#include "apps/commands/timeline_options.hpp"

#include "base/text.hpp"
#include "core/trace/step_timeline.hpp"

namespace gossamer::apps {
namespace {

/// An empty text if `text` names steps, else what is wrong with it.
std::string check_steps(const std::string& text) {
  if (parse_timeline_steps(text)) return "";
  return concat("is ", text, ", allowed: BEGIN:END with 0 <= BEGIN < END, as 10:30");
}

}  // namespace

void add_timeline_options(CLI::App& command, std::string& path, std::string& steps) {
  command
      .add_option("--timeline", path,
                  "Write what all ranks do, and when, into one file for https://ui.perfetto.dev")
      ->type_name("FILE.json");
  command
      .add_option(
          "--timeline-steps", steps,
          "The steps of the timeline: 10:30 leaves 10 steps out, and records until 30 steps "
          "are done. Default 10:30, or fewer in a shorter run")
      ->check(check_steps)
      ->type_name("BEGIN:END");
}

}  // namespace gossamer::apps
