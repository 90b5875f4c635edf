#include "apps/records/run_record.hpp"

#include <filesystem>
#include <fstream>
#include <limits>

#include "base/error.hpp"
#include "base/text.hpp"
#include "base/yaml.hpp"

namespace gossamer::apps {
namespace {

namespace fs = std::filesystem;
using ReportJson = nlohmann::ordered_json;

// The beginning of a line, so that long files need not be parsed whole.
constexpr std::string_view kStepLine = R"({"kind":"step")";
constexpr std::string_view kConsensusKey = "\"consensus_distance\"";

/// The values of a tree, by dotted paths. A list is one value.
void flatten(const YamlNode& node, const std::string& path,
             std::map<std::string, std::string>& values) {
  const auto text_of = [](const YamlNode& item) {
    return item.kind == YamlNode::Kind::kNull ? std::string("null") : item.scalar;
  };
  switch (node.kind) {
    case YamlNode::Kind::kMapping:
      for (const auto& [key, value] : node.entries) {
        flatten(value, path.empty() ? key.name : concat(path, ".", key.name), values);
      }
      return;
    case YamlNode::Kind::kSequence:
      for (std::size_t i = 0; i < node.items.size(); ++i) {
        flatten(node.items[i], concat(path, "[", i, "]"), values);
      }
      return;
    case YamlNode::Kind::kNull:
    case YamlNode::Kind::kScalar:
      values[path] = text_of(node);
      return;
  }
}

/// Numbers of records of steps: with a consensus distance, and without. The two are thinned apart,
/// or the few with a distance could all be left out.
struct StepCounts {
  std::size_t with = 0;
  std::size_t without = 0;
};

std::size_t& count_of(const std::string& line, StepCounts& counts) {
  return line.find(kConsensusKey) == line.npos ? counts.without : counts.with;
}

StepCounts count_steps(const std::string& metrics) {
  std::ifstream file(metrics);
  StepCounts counts;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kStepLine)) ++count_of(line, counts);
  }
  return counts;
}

bool keeps(const std::string& line, StepCounts counts, std::size_t most, StepCounts& seen) {
  const std::size_t count = count_of(line, counts);
  const std::size_t index = count_of(line, seen)++;
  return index % (count / most + 1) == 0 || index + 1 == count;
}

ReportJson read_json(const fs::path& path) {
  const auto json = json_file_or_null<ReportJson>(path);
  return json.is_object() ? json : ReportJson(nullptr);
}

}  // namespace

std::string RunRecord::value(const std::string& key) const {
  const auto found = config.find(key);
  return found == config.end() ? "" : found->second;
}

RunRecord read_run(const std::string& path, std::size_t most_steps) {
  const fs::path folder(path);
  std::error_code failure;
  if (!fs::exists(folder / "config.yaml", failure)) {
    throw CheckpointError(concat(path, failure ? " cannot be read: " + failure.message() : "",
                                 failure ? "" : " is not the folder of a run",
                                 "; such a folder holds config.yaml and metrics.jsonl"));
  }
  RunRecord run;
  run.path = path;
  run.name = (fs::absolute(folder).lexically_normal() / "x").parent_path().filename().string();
  flatten(read_yaml_file((folder / "config.yaml").string()), "", run.config);
  run.status = read_json(folder / "status.json");
  run.environment = read_json(folder / "environment.json");
  const std::string metrics = (folder / "metrics.jsonl").string();
  const StepCounts counts = count_steps(metrics);
  StepCounts seen;
  const fs::path timeline = run.value("log.timeline");
  if (timeline.has_filename()) {
    // The run may have been moved.
    run.timeline_paths = {(folder / timeline.filename()).string(), timeline.string()};
  }
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kStepLine) && !keeps(line, counts, most_steps, seen)) continue;
    auto record = json_or_null<ReportJson>(line);
    // The last line of a run that is under way may be cut off.
    if (!record.is_object()) continue;
    const std::string kind = text_in(record, "kind");
    const bool has_ranks = kind == "step" || kind == "final";
    if (has_ranks && !run.changes.empty() && !record.contains("members")) {
      record["members"] = run.changes.back()["members"];
    }
    if (kind == "step") {
      run.steps.push_back(std::move(record));
    } else if (kind == "eval") {
      run.evaluations.push_back(std::move(record));
    } else if (kind == "members" && size_in(record, "members") > 0) {
      run.changes.push_back(std::move(record));
    } else if (kind == "final") {
      run.final_record = std::move(record);
    }
  }
  return run;
}

std::vector<RunRecord> read_runs(const std::vector<std::string>& paths, std::size_t most_steps) {
  std::vector<RunRecord> runs;
  std::map<std::string, int> counts;
  for (const std::string& path : paths) {
    runs.push_back(read_run(path, most_steps));
    ++counts[runs.back().name];
  }
  for (RunRecord& run : runs) {
    if (counts[run.name] > 1) run.name = run.path;
  }
  return runs;
}

double number_in(const ReportJson& record, const std::string& key) {
  if (record.is_object() && record.contains(key) && record[key].is_number()) {
    return record[key].get<double>();
  }
  return std::numeric_limits<double>::quiet_NaN();
}

double number_in(const ReportJson& record, const std::string& key, std::size_t index) {
  if (index < size_in(record, key) && record[key][index].is_number()) {
    return record[key][index].get<double>();
  }
  return std::numeric_limits<double>::quiet_NaN();
}

std::size_t member_at(const ReportJson& record, std::size_t rank) {
  const double member = number_in(record, "members", rank);
  return member >= 0.0 && member < 1e15 ? static_cast<std::size_t>(member) : rank;
}

std::string members_in(const ReportJson& record, const std::string& key) {
  std::vector<std::size_t> members;
  for (std::size_t i = 0; i < size_in(record, key); ++i) {
    const double member = number_in(record, key, i);
    if (member >= 0.0 && member < 1e15) members.push_back(static_cast<std::size_t>(member));
  }
  return members.empty() ? "–" : join(members, ", ");
}

std::size_t size_in(const ReportJson& record, const std::string& key) {
  const bool has = record.is_object() && record.contains(key) && record[key].is_array();
  return has ? record[key].size() : 0;
}

}  // namespace gossamer::apps
