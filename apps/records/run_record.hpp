#pragma once
// What the folder of a run says about the run, for reports and for `gossamer watch`. Reads the
// folder of a run that is under way, too.
//
// Errors: CheckpointError for a folder that is no run's, and for files that cannot be read. No
// state; any thread may call.

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/records/json.hpp"

namespace gossamer::apps {

struct RunRecord {
  /// The last part of the path, for headings; see read_runs().
  std::string name;
  std::string path;
  /// The values of the configuration, by dotted path.
  std::map<std::string, std::string> config;
  /// The contents of status.json and environment.json; null if there is no such file.
  nlohmann::ordered_json status;
  nlohmann::ordered_json environment;
  /// The lines of metrics.jsonl by their kind: step, eval, members, final. After a record of
  /// `members`, the records of steps and of the end have its members, unless they name their own.
  std::vector<nlohmann::ordered_json> steps;
  std::vector<nlohmann::ordered_json> evaluations;
  std::vector<nlohmann::ordered_json> changes;
  /// The last record; null before the end of the run.
  nlohmann::ordered_json final_record;
  /// The places of the file of log.timeline, which read_timeline() tries; empty without a timeline.
  std::vector<std::string> timeline_paths;

  /// A value of the configuration; empty if there is none.
  [[nodiscard]] std::string value(const std::string& key) const;
};

/// The most records of steps that a chart can show.
inline constexpr std::size_t kMostSteps = 2000;

/// Reads the folder of a run. Keeps about `most_steps` of the records of steps, evenly chosen, and
/// the last one.
RunRecord read_run(const std::string& path, std::size_t most_steps = kMostSteps);

/// Reads several runs. Runs whose folders have the same name get their paths as names.
std::vector<RunRecord> read_runs(const std::vector<std::string>& paths,
                                 std::size_t most_steps = kMostSteps);

// Whatever a file holds, these functions and text_in() return something.

/// A number of a record; NaN if the record lacks it.
double number_in(const nlohmann::ordered_json& record, const std::string& key);
/// A number of a list in a record; NaN if there is none.
double number_in(const nlohmann::ordered_json& record, const std::string& key, std::size_t index);
/// The member that has a rank in a record; the rank itself where the record names no members.
std::size_t member_at(const nlohmann::ordered_json& record, std::size_t rank);
/// A list of members, as `0, 1, 3`; `–` if it is empty or not there.
std::string members_in(const nlohmann::ordered_json& record, const std::string& key);
/// The length of a list in a record; 0 if there is none.
std::size_t size_in(const nlohmann::ordered_json& record, const std::string& key);

}  // namespace gossamer::apps
