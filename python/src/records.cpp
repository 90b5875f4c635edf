#include "python/src/module.hpp"
#include "python/src/options.hpp"
#include "python/src/session.hpp"

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <nlohmann/json.hpp>

#include "apps/records/environment.hpp"
#include "apps/records/left_folder.hpp"
#include "apps/records/progress_line.hpp"
#include "apps/records/rank_figures.hpp"
#include "apps/records/report.hpp"
#include "apps/records/run_folder.hpp"
#include "base/error.hpp"

namespace gossamer::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;
using apps::Json;

constexpr apps::FolderWords kWords{
    .keep = "name another folder, as ",
    .go_on = "call Checkpoints.resume(model) before gs.Run(), with the checkpoints of ",
    .replace = "give overwrite=True"};

apps::IfFinished if_finished(const std::string& name) {
  if (name == "refuse") return apps::IfFinished::kRefuse;
  if (name == "replace") return apps::IfFinished::kReplace;
  if (name == "continue") return apps::IfFinished::kContinue;
  if (name == "take over") return apps::IfFinished::kTakeOver;
  throw ConfigError("if_finished: is " + name + ", allowed: refuse, replace, continue, take over");
}

/// A number that a rank has told; NaN where it has told null.
double number(const Json& told, const char* key) {
  const Json& value = told.at(key);
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

/// The text of a value, in which numbers that are not finite are null.
std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string window_fields(const std::string& ranks, bool in_step) {
  std::vector<apps::WindowFigures> figures;
  for (const Json& told : Json::parse(ranks)) {
    figures.push_back({.loss = number(told, "loss"),
                       .num_losses = number(told, "num_losses"),
                       .samples = number(told, "samples"),
                       .seconds = number(told, "seconds"),
                       .wait_s = number(told, "wait_s"),
                       .steps = number(told, "steps"),
                       .all_steps = number(told, "all_steps")});
  }
  return text_of(apps::window_fields(figures, in_step));
}

std::string final_record(const std::string& ranks, std::int64_t steps) {
  std::vector<apps::RunFigures> figures;
  for (const Json& told : Json::parse(ranks)) {
    figures.push_back({.forward_s = number(told, "forward_s"),
                       .backward_s = number(told, "backward_s"),
                       .wait_s = number(told, "wait_s"),
                       .update_s = number(told, "update_s"),
                       .bytes_sent = number(told, "bytes_sent"),
                       .train_s = number(told, "train_s"),
                       .samples = number(told, "samples"),
                       .num_wide_differences = number(told, "wide_differences"),
                       .steps = number(told, "steps")});
  }
  return text_of(apps::to_json(apps::summary_of(figures, steps)));
}

std::string progress_text(const std::string& record, std::int64_t total_steps) {
  const Json told = Json::parse(record);
  const auto known = [&told](const char* key) {
    return told.contains(key) ? number(told, key) : std::numeric_limits<double>::quiet_NaN();
  };
  const std::int64_t step = told.at("step");
  apps::ProgressState state{.step = step,
                            .total_steps = total_steps,
                            .loss = known("loss"),
                            .lr = known("lr"),
                            .samples_per_s = known("samples_per_s"),
                            .seconds_left = known("elapsed_s") / static_cast<double>(step) *
                                            static_cast<double>(total_steps - step),
                            .consensus_distance = {}};
  if (told.contains("consensus_distance")) state.consensus_distance = known("consensus_distance");
  return apps::to_string(state);
}

std::string describe_environment(const PySession& session, const std::string& versions) {
  return text_of(apps::describe_environment(session.called(), session.world(), versions));
}

bool write_end_of(const std::string& folder, const std::string& writer, int rank,
                  const std::string& message, int exit_code) {
  // A writer that fails with the others writes within this time how the run has ended.
  constexpr auto kPatience = std::chrono::seconds(3);
  return apps::write_end_of(
      {.path = folder, .writer = writer, .ends_together = true},
      {.rank = rank, .message = message, .code = static_cast<ExitCode>(exit_code)}, kPatience);
}

}  // namespace

void add_records(nb::module_& module) {
  using Free = nb::call_guard<nb::gil_scoped_release>;
  using apps::RunFolder;
  nb::class_<RunFolder>(module, "RunFolder")
      .def(
          "__init__",
          [](RunFolder* folder, const std::string& path,
             const std::vector<std::pair<std::string, std::string>>& config,
             const std::string& if_finished, const std::string& environment) {
            std::vector<ResolvedValue> values;
            for (const auto& [key, value] : config) values.push_back({.path = key, .value = value});
            new (folder) RunFolder(path, std::move(values), python::if_finished(if_finished),
                                   Json::parse(environment), kWords);
          },
          "path"_a, "config"_a, "if_finished"_a, "environment"_a, Free())
      .def("begin", &RunFolder::begin, Free())
      .def(
          "resume_after",
          [](RunFolder& folder, std::int64_t step) {
            const Json last = folder.resume_after(step);
            folder.write_configuration();
            return text_of(last);
          },
          "step"_a, Free(), "Go on after a step, and return the last record until then.")
      .def("take_over", &RunFolder::take_over, "step"_a, Free())
      .def("use_tensorboard", &RunFolder::use_tensorboard)
      .def(
          "has_record",
          [](const RunFolder& folder, const std::string& like) {
            return folder.has_record(Json::parse(like));
          },
          "like"_a, Free())
      .def(
          "write_metrics",
          [](RunFolder& folder, const std::string& record) {
            folder.write_metrics(Json::parse(record));
          },
          "record"_a, Free())
      .def(
          "write_status",
          [](const RunFolder& folder, const std::string& status, bool sync) {
            folder.write_status(Json::parse(status), sync);
          },
          "status"_a, "sync"_a, Free())
      .def_prop_ro("remarks", &RunFolder::remarks);
  module.def("this_process", &apps::this_process);
  module.def("describe_environment", &describe_environment, "session"_a, "versions"_a, Free());
  module.def("window_fields", &window_fields, "ranks"_a, "in_step"_a);
  module.def("final_record", &final_record, "ranks"_a, "steps"_a);
  module.def("progress_text", &progress_text, "record"_a, "total_steps"_a);
  module.def(
      "write_report",
      [](const std::string& folder) {
        apps::write_report(folder, {.topologies = own_topologies()});
      },
      "folder"_a, Free());
  module.def("write_end_of", &write_end_of, "folder"_a, "writer"_a, "rank"_a, "message"_a,
             "exit_code"_a, Free());
}

}  // namespace gossamer::python
