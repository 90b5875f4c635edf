#include "apps/lab/study/study.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "apps/lab/study/study_config.hpp"
#include "apps/lab/study/study_progress.hpp"
#include "apps/records/run_folder.hpp"
#include "apps/records/run_record.hpp"
#include "apps/train/agreement.hpp"
#include "apps/train/compute_threads.hpp"
#include "apps/train/local_processes.hpp"
#include "apps/train/rank_setup.hpp"
#include "apps/train/run_config.hpp"
#include "apps/train/start_store.hpp"
#include "apps/train/stop_signals.hpp"
#include "apps/train/training_loop.hpp"
#include "base/text.hpp"
#include "base/yaml.hpp"
#include "comm/backends.hpp"
#include "core/bucket/bucket_plan.hpp"

namespace gossamer::apps {
namespace {

// Keys that do not change the result of a run.
constexpr std::array<std::string_view, 12> kIrrelevant = {
    "fault",        "run.output_dir", "run.threads",        "log.level",
    "log.progress", "log.timeline",   "log.timeline_steps", "comm.timeout_s",
    "comm.streams", "comm.interface", "comm.security",      "comm.secret_file"};

/// Removes the value at a dotted path from a tree.
void remove_path(YamlNode& tree, std::string_view path) {
  const std::size_t dot = path.find('.');
  if (dot == std::string_view::npos) {
    std::erase_if(tree.entries, [&](const auto& pair) { return pair.first.name == path; });
  } else if (YamlNode* section = tree.find(path.substr(0, dot))) {
    remove_path(*section, path.substr(dot + 1));
  }
}

/// True if two trees hold the same values; their places in the files do not count.
bool same_values(const YamlNode& a, const YamlNode& b) {
  const auto same_entry = [](const auto& left, const auto& right) {
    return left.first.name == right.first.name && same_values(left.second, right.second);
  };
  return a.kind == b.kind && a.scalar == b.scalar && a.quoted == b.quoted &&
         std::ranges::equal(a.items, b.items, same_values) &&
         std::ranges::equal(a.entries, b.entries, same_entry);
}

std::string text_of(const YamlNode* node) {
  if (node == nullptr) return "nothing";
  if (node->kind == YamlNode::Kind::kScalar) return node->scalar;
  return node->kind == YamlNode::Kind::kNull ? "null" : "another list";
}

/// The first value at `path` or below it that two trees do not share; empty if there is none.
std::string first_difference(const YamlNode* had, const YamlNode* wanted, const std::string& path) {
  if (had != nullptr && wanted != nullptr && same_values(*had, *wanted)) return "";
  const auto is_mapping = [](const YamlNode* node) {
    return node != nullptr && node->kind == YamlNode::Kind::kMapping;
  };
  if (!is_mapping(had) || !is_mapping(wanted)) {
    return concat(path, " is ", text_of(had), " there and ", text_of(wanted), " here");
  }
  std::string found;
  for (const YamlNode* tree : {wanted, had}) {
    for (const auto& [key, value] : tree->entries) {
      if (!found.empty()) break;
      found = first_difference(had->find(key.name), wanted->find(key.name),
                               path.empty() ? key.name : concat(path, ".", key.name));
    }
  }
  return found;
}

/// The record of kind `final`; nothing if the run has not written it.
std::optional<Json> final_record(const std::string& folder) {
  std::ifstream file(folder + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const Json record = json_or_null<Json>(line);
    if (text_in(record, "kind") == "final") return record;
  }
  return std::nullopt;
}

/// What the finished run in a folder does not share with the run that is wanted; empty if they are
/// the same. Nothing if there is no finished run.
std::optional<std::string> difference_of_finished(const std::string& folder,
                                                  const std::vector<ResolvedValue>& config,
                                                  int workers) {
  const Json status = json_file_or_null<Json>(folder + "/status.json");
  const std::optional<Json> end = final_record(folder);
  if (text_in(status, "state") != "done" || !end) return std::nullopt;
  // The configuration does not contain the number of workers.
  if (number_in(*end, "world_size") != workers) {
    return concat("it has ", text_in(*end, "world_size"), " workers there and ", workers, " here");
  }
  try {
    YamlNode had = read_yaml_file(folder + "/config.yaml");
    YamlNode wanted = parse_yaml(to_yaml(config), "wanted");
    for (const std::string_view path : kIrrelevant) {
      remove_path(had, path);
      remove_path(wanted, path);
    }
    return first_difference(&had, &wanted, "");
  } catch (const ConfigError&) {
    // The file was cut off or edited by hand.
    return std::nullopt;
  }
}

/// Options over the sections of a run, below the key `base`, so that errors name keys as the
/// study's file has them.
Options as_base(const YamlNode& tree) {
  YamlNode root{.kind = YamlNode::Kind::kMapping, .where = tree.where};
  root.entries.push_back({{"base", tree.where}, tree});
  return Options(root).section("base");
}

/// The study's file, or the error of reading it. Errors are thrown later, because all ranks must
/// leave together.
struct Source {
  StudyConfig config;
  std::optional<ConfigError> error;
  LaunchConfig launch;
};

Source read_source(const StudyRequest& request) {
  Source source;
  source.launch.backend = default_backend();
  try {
    YamlNode tree = read_yaml_file(request.config_path);
    for (const std::string& text : request.overrides) apply_override(tree, text);
    source.config = read_study_config(tree, request.config_path, request.own);
    source.launch = read_comm_config(as_base(source.config.base), request.own).launch;
  } catch (const ConfigError& error) {
    source.error = error;
  }
  return source;
}

/// The work of one rank.
class StudyRank {
 public:
  struct Shared {
    const Source& source;
    SharedData& data;
    const StudyRequest& request;
    /// May be null.
    const StopSignals* stop;
    /// Written by rank 0.
    StudyOutcome& outcome;
  };

  StudyRank(Communicator& communicator, const World& world, const Shared& shared)
      : communicator_(communicator), world_(world), shared_(shared) {}

  void run() {
    check();
    const std::vector<StudyRun>& runs = shared_.source.config.runs;
    std::vector<bool> finished;
    for (const StudyRun& run : runs) finished.push_back(already_finished(run));
    const std::int64_t num_kept = std::ranges::count(finished, true);
    if (world_.rank == 0) greet(num_kept);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (!finished[i]) train(static_cast<std::int64_t>(i) + 1, runs[i]);
      // All ranks learn together, before the next run, that a folder cannot be written.
      all_or_none(communicator_, [&] {
        if (world_.rank == 0) record(runs[i], finished[i]);
        return true;
      });
    }
    if (progress_) progress_->end_line();
  }

 private:
  [[nodiscard]] RunConfig read(const StudyRun& run) const {
    return read_run_config(Options(run.tree), world_, shared_.request.config_path,
                           shared_.request.own);
  }

  /// Checks all runs before the first one starts.
  void check() {
    std::vector<std::string> lines;
    all_or_none(communicator_, [&] {
      if (shared_.source.error) throw ConfigError(*shared_.source.error);
      const StudyConfig& config = shared_.source.config;
      if (config.workers != world_.size) {
        throw ConfigError(config.workers_where, "study.workers",
                          concat("is ", config.workers, ", and ", world_.size,
                                 " ranks were started, allowed: study.workers=", world_.size,
                                 ", or ", config.workers, " ranks"));
      }
      for (const StudyRun& run : config.runs) {
        const RunConfig checked = read_run_config(as_base(run.tree), world_,
                                                  shared_.request.config_path, shared_.request.own);
        lines.push_back(lines_of(checked.resolved));
        level_ = checked.comm.log_level();
        mode_ = checked.progress;
      }
      return true;
    });
    agree(communicator_, "their study", join(lines, "\n"));
    logger_ = Logger(level_, world_.rank == 0 ? "" : concat("rank ", world_.rank));
  }

  /// Rank 0 looks and tells the other ranks, because they may not see its folder. Throws if the
  /// folder holds another finished run.
  bool already_finished(const StudyRun& run) {
    const bool mine = all_or_none(communicator_, [&] {
      if (world_.rank != 0) return false;
      const auto difference =
          difference_of_finished(folder_of(run), read(run).resolved, world_.size);
      if (!difference || difference->empty()) return difference.has_value();
      if (shared_.request.overwrite) return false;
      throw CheckpointError(concat(folder_of(run), " holds a finished run of other values: ",
                                   *difference, ". To keep it, type study.output_dir=PATH; to ",
                                   "replace all such runs of the study, type --overwrite"));
    });
    return communicator_.all_gather(mine ? "kept" : "").front() == "kept";
  }

  [[nodiscard]] std::string folder_of(const StudyRun& run) const {
    return (std::filesystem::path(shared_.source.config.output_dir) / run.name).string();
  }

  void greet(std::int64_t num_kept) {
    const StudyConfig& config = shared_.source.config;
    const auto num_runs = static_cast<std::int64_t>(config.runs.size());
    shared_.outcome.num_kept = num_kept;
    logger_.info(concat("a study of ", num_runs, " runs with ", world_.size, " workers into ",
                        config.output_dir, "; ", num_kept, " of them are finished and kept"));
    progress_.emplace(StudyProgress::Setup{
        .mode = mode_, .logger = logger_, .num_runs = num_runs, .num_to_do = num_runs - num_kept});
  }

  void train(std::int64_t number, const StudyRun& run) {
    const RunConfig config = read(run);
    set_compute_threads(config, world_, &communicator_);
    const auto data = load_together(communicator_, shared_.data, config);
    auto folder = all_or_none_slow(communicator_, [&]() -> std::unique_ptr<RunFolder> {
      if (world_.rank != 0) return nullptr;
      return std::make_unique<RunFolder>(folder_of(run), config.resolved, IfFinished::kReplace);
    });
    if (folder) say_what_was_there(*folder);
    if (progress_) progress_->begin(number, run.name);
    try {
      TrainingLoop trainer(config,
                           {.communicator = communicator_,
                            .world = world_,
                            .logger = Logger(std::max(level_, LogLevel::kWarning), run.name),
                            .data = data,
                            .observer =
                                [this](const ProgressState& state) {
                                  if (progress_) progress_->show(state);
                                },
                            .stop = shared_.stop});
      trainer.run(std::move(folder));
    } catch (const std::exception& error) {
      if (progress_) {
        progress_->end_line();
        logger_.error(concat("run ", number, "/", shared_.source.config.runs.size(), ", ", run.name,
                             is_stop(error) ? ", was stopped" : ", has failed",
                             " and ends the study; the runs that finished are kept"));
      }
      throw;
    }
  }

  void say_what_was_there(const RunFolder& folder) {
    if (folder.remarks().empty() && !folder.replaces_earlier_run()) return;
    progress_->end_line();
    for (const std::string& remark : folder.remarks()) logger_.warning(remark);
    if (folder.replaces_earlier_run()) {
      logger_.warning(concat("the run that was in ", folder.path(),
                             " is replaced: it had not finished, or was configured otherwise"));
    }
  }

  /// Adds a run that has finished to the results.
  void record(const StudyRun& run, bool was_kept) {
    const std::optional<Json> end = final_record(folder_of(run));
    if (!end) {
      throw CheckpointError(concat(folder_of(run), "/metrics.jsonl has no final record any more. ",
                                   "Run the study again."));
    }
    std::vector<StudyRow>& rows = shared_.outcome.rows;
    rows.push_back(make_row(run, *end));
    if (!was_kept) progress_->end(rows.back());
    const std::string& folder = shared_.source.config.output_dir;
    write_file(folder + "/results.csv", to_csv(rows), "study.output_dir");
    write_file(folder + "/table.md", to_markdown(group_over_seeds(rows)), "study.output_dir");
  }

  Communicator& communicator_;
  const World& world_;
  Shared shared_;
  Logger logger_;
  LogLevel level_ = LogLevel::kInfo;
  std::string mode_ = "auto";
  /// Only on rank 0.
  std::optional<StudyProgress> progress_;
};

}  // namespace

StudyOutcome run_study(const StudyRequest& request) {
  Source source = read_source(request);
  const Start start = plan_own_start(request.start, source.launch, source.error);
  StudyOutcome outcome;
  if (const auto code = run_processes(start)) {
    outcome.exit_code = *code;
    return outcome;
  }
  if (!start.is_rank && source.launch.backend == "threads") {
    source.launch.options.num_ranks = source.config.workers;
  }
  std::optional<StopSignals> stop;
  if (request.heeds_signals) stop.emplace();
  outcome.folder = source.config.output_dir;
  SharedData data;
  outcome.exit_code =
      launch_as(start, source.launch, [&](Communicator& communicator, const World& world) {
        return exit_together(world, [&] {
          StudyRank(communicator, world, {source, data, request, stop ? &*stop : nullptr, outcome})
              .run();
          return static_cast<int>(ExitCode::kDone);
        });
      });
  return outcome;
}

}  // namespace gossamer::apps
