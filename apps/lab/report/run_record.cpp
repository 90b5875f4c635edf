#include "apps/lab/report/run_record.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>
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

std::size_t count_steps(const std::string& metrics) {
  std::ifstream file(metrics);
  std::size_t count = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kStepLine)) ++count;
  }
  return count;
}

ReportJson read_json(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const ReportJson json = ReportJson::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : ReportJson(nullptr);
}

}  // namespace

std::string RunRecord::value(const std::string& key) const {
  const auto found = config.find(key);
  return found == config.end() ? "" : found->second;
}

RunRecord read_run(const std::string& path, std::size_t most_steps) {
  const fs::path folder(path);
  if (!fs::exists(folder / "config.yaml")) {
    throw CheckpointError(concat(path,
                                 " is not the folder of a run; such a folder holds "
                                 "config.yaml and metrics.jsonl"));
  }
  RunRecord run;
  run.path = path;
  run.name = (fs::absolute(folder).lexically_normal() / "x").parent_path().filename().string();
  flatten(read_yaml_file((folder / "config.yaml").string()), "", run.config);
  run.status = read_json(folder / "status.json");
  run.environment = read_json(folder / "environment.json");
  const std::string metrics = (folder / "metrics.jsonl").string();
  const std::size_t num_steps = count_steps(metrics);
  const std::size_t stride = num_steps / most_steps + 1;
  std::size_t step = 0;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) {
    const bool of_step = line.starts_with(kStepLine);
    if (of_step && step++ % stride != 0 && step != num_steps) continue;
    ReportJson record = ReportJson::parse(line, nullptr, /*allow_exceptions=*/false);
    // The last line of a run that is under way may be cut off.
    if (!record.is_object()) continue;
    const std::string kind = record.value("kind", "");
    if (kind == "step") {
      run.steps.push_back(std::move(record));
    } else if (kind == "eval") {
      run.evaluations.push_back(std::move(record));
    } else if (kind == "final") {
      run.final_record = std::move(record);
    }
  }
  return run;
}

double number_in(const ReportJson& record, const std::string& key) {
  if (record.is_object() && record.contains(key) && record[key].is_number()) {
    return record[key].get<double>();
  }
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace gossamer::apps
