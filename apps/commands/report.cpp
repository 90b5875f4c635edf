// gossamer report RUN [RUN ...] and gossamer watch RUN

#include "apps/records/report.hpp"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include "apps/commands/commands.hpp"
#include "apps/records/chart.hpp"
#include "apps/records/folder_lock.hpp"
#include "apps/records/progress_line.hpp"
#include "apps/records/run_folder.hpp"
#include "apps/records/run_record.hpp"
#include "apps/records/timeline_picture.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "core/checkpoint/whole_file.hpp"

namespace gossamer::apps {
namespace {

struct ReportArguments {
  std::vector<std::string> paths;
  std::string output;
  std::string csv;
  PlugIns own;
};

/// Draws the file of a timeline.
void draw_timeline(const std::string& path, std::string output) {
  const std::string svg = timeline_svg(read_trace(path), "Timeline of a few steps");
  if (svg.empty()) {
    throw CheckpointError(concat(path,
                                 " is not a timeline; --timeline of gossamer train and of "
                                 "gossamer bench step writes one"));
  }
  if (output.empty()) output = std::filesystem::path(path).replace_extension(".svg").string();
  write_whole_file(output, svg, /*sync=*/false);
  std::cout << visible(output) << ": open it in a browser\n";
}

void report(const ReportArguments& arguments) {
  std::error_code failure;
  if (arguments.paths.size() == 1 &&
      std::filesystem::is_regular_file(arguments.paths.front(), failure)) {
    return draw_timeline(arguments.paths.front(), arguments.output);
  }
  if (!arguments.csv.empty()) {
    const std::vector<RunRecord> runs =
        read_runs(arguments.paths, std::numeric_limits<std::size_t>::max());
    const std::string csv = csv_report(runs);
    if (arguments.csv == "-") {
      std::cout << csv << std::flush;
    } else {
      write_whole_file(arguments.csv, csv, /*sync=*/false);
      std::cout << visible(arguments.csv) << ": the records of " << runs.size() << " runs\n";
    }
    if (arguments.output.empty()) return;
  }
  const std::vector<RunRecord> runs = read_runs(arguments.paths);
  std::string output = arguments.output;
  if (output.empty()) {
    output = runs.size() == 1 ? concat(runs.front().path, "/", kReportName) : kReportName;
  }
  write_whole_file(output, html_report(runs, arguments.own), /*sync=*/false);
  std::cout << visible(output) << ": open it in a browser\n";
}

// States of a run; others say how it has ended.
constexpr std::string_view kStarting = "starting";
constexpr std::string_view kRunning = "running";
constexpr std::string_view kDied = "died";

bool goes_on(const std::string& state) { return state == kStarting || state == kRunning; }

/// The run, and what it is doing. A run that has been killed has left its status as it was.
std::pair<RunRecord, std::string> look_at(const std::string& path) {
  // First the lock: what a run writes at its end comes before it leaves its folder.
  const bool left = is_left(path);
  RunRecord run = read_run(path);
  std::string state = run.status.is_null() ? std::string(kStarting) : text_in(run.status, "state");
  if (left && goes_on(state)) state = kDied;
  return {std::move(run), std::move(state)};
}

/// Who is in a run that goes on when ranks die; empty for other runs.
std::string members_of(const RunRecord& run) {
  const std::size_t count = size_in(run.status, "members");
  if (count == 0) return "";
  std::string view =
      concat("\n  ", count, count == 1 ? " rank" : " ranks", ", members ",
             members_in(run.status, "members"), "   epoch ", text_in(run.status, "epoch"),
             "   goodput ", short_number(100.0 * number_in(run.status, "goodput")), " %\n");
  if (!run.status.contains("last_change")) return view;
  const auto& last = run.status["last_change"];
  view += concat("  last change after step ", text_in(last, "step"), ", at ",
                 format_duration(number_in(last, "elapsed_s")), ": ");
  for (const char* const key : {"lost", "joined"}) {
    if (size_in(last, key) > 0) view += concat(key, " ", members_in(last, key), ", ");
  }
  return concat(view, "recovery ", short_number(number_in(last, "recovery_s")), " s\n");
}

/// What a terminal shows of a run.
std::string view_of(const RunRecord& run, const std::string& state) {
  constexpr std::size_t kMostRanks = 64;
  if (run.status.is_null()) return concat(run.path, "  ", state, "\n");
  std::string view = concat(run.path, "  ", state, "  step ", text_in(run.status, "step"));
  if (const std::string total = text_in(run.status, "total_steps"); !total.empty()) {
    view += " of " + total;
  }
  if (const std::string step = text_in(run.status, "diverged_at"); !step.empty()) {
    view += concat("  diverged after step ", step);
  }
  if (run.steps.empty()) return view + "\n  no record so far\n" + members_of(run);
  const auto& last = run.steps.back();
  view +=
      concat("  after ", format_duration(number_in(last, "elapsed_s")), "\n\n  loss ",
             short_number(number_in(last, "loss")), "   lr ", short_number(number_in(last, "lr")),
             "   samples/s ", short_number(number_in(last, "samples_per_s")));
  for (auto record = run.steps.rbegin(); record != run.steps.rend(); ++record) {
    if (!record->contains("consensus_distance")) continue;
    view +=
        concat("   consensus distance ", short_number(number_in(*record, "consensus_distance")));
    break;
  }
  if (!run.evaluations.empty()) {
    const auto& evaluation = run.evaluations.back();
    view += concat("\n  evaluation after step ", text_in(evaluation, "step"), ": loss ",
                   short_number(number_in(evaluation, "loss_mean_model")));
    if (evaluation.contains("accuracy_mean_model")) {
      view += concat(", accuracy ",
                     short_number(100.0 * number_in(evaluation, "accuracy_mean_model")), " %");
    }
  }
  view += "\n" + members_of(run);
  view += last.contains("members") ? "\nmember" : "\n  rank";
  view += "        loss   samples/s   waiting ms/step\n";
  const auto number = [&last](const char* key, std::size_t rank) {
    return short_number(number_in(last, key, rank));
  };
  const std::size_t count = size_in(last, "rank_loss");
  for (std::size_t rank = 0; rank < std::min(count, kMostRanks); ++rank) {
    char line[128];
    std::snprintf(line, sizeof line, "  %4zu  %10s  %10s  %16s\n", member_at(last, rank),
                  number("rank_loss", rank).c_str(), number("rank_samples_per_s", rank).c_str(),
                  number("rank_wait_ms", rank).c_str());
    view += line;
  }
  if (count > kMostRanks) view += concat("  ... and ", count - kMostRanks, " more\n");
  return view;
}

struct WatchArguments {
  std::string path;
  double every_s = 1.0;
  bool once = false;
};

void watch(const WatchArguments& arguments) {
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  for (;;) {
    const auto [run, state] = look_at(arguments.path);
    // Home, then the view, each line to its end, then whatever an earlier view has left below.
    std::string view = visible(view_of(run, state));
    if (terminal && !arguments.once) {
      for (std::size_t i = view.find('\n'); i != view.npos; i = view.find('\n', i + 4)) {
        view.insert(i, "\033[K");
      }
      view = concat("\033[H", view, "\033[J");
    }
    std::cout << view << std::flush;
    if (arguments.once || !goes_on(state)) return;
    std::this_thread::sleep_for(std::chrono::duration<double>(arguments.every_s));
  }
}

}  // namespace

void add_report_command(CLI::App& program, int& exit_code, const PlugIns& own) {
  CLI::App* command =
      program.add_subcommand("report", "Write a page about a run, or a comparison of several runs");
  auto arguments = std::make_shared<ReportArguments>();
  arguments->own = own;
  command
      ->add_option("runs", arguments->paths,
                   "Folders of runs; or one file of a timeline, which becomes a picture")
      ->required()
      ->type_name("RUN");
  command
      ->add_option("-o,--output", arguments->output,
                   "The page; by default report.html in the folder of the run, or of several runs "
                   "in this folder. Of a timeline: the picture, by default beside it")
      ->type_name("FILE");
  command
      ->add_option("--csv", arguments->csv,
                   "Write the records as a table; - is the standard output")
      ->type_name("FILE.csv");
  command->footer(
      "Examples:\n  gossamer report runs/quickstart\n"
      "  gossamer report runs/ring runs/allreduce -o comparison.html\n"
      "  gossamer report trace.json -o timeline.svg");
  command->callback([arguments, &exit_code] {
    report(*arguments);
    exit_code = static_cast<int>(ExitCode::kDone);
  });
}

void add_watch_command(CLI::App& program, int& exit_code) {
  CLI::App* command =
      program.add_subcommand("watch", "Show a run that is under way, every rank of it");
  auto arguments = std::make_shared<WatchArguments>();
  command->add_option("run", arguments->path, "The folder of the run")
      ->required()
      ->type_name("RUN");
  command->add_option("--every", arguments->every_s, "Seconds between two views")
      ->check(CLI::Range(0.1, 3600.0));
  command->add_flag("--once", arguments->once, "Show it once");
  command->footer("Example:\n  gossamer watch runs/quickstart");
  command->callback([arguments, &exit_code] {
    watch(*arguments);
    exit_code = static_cast<int>(ExitCode::kDone);
  });
}

}  // namespace gossamer::apps
