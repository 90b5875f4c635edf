#pragma once
// Writes what happens in a run: the records and the status in the run's folder, and the progress
// for the user.
//
// Rank 0 has the folder (RunFolder) and writes it. The other ranks take part in the calls marked
// "Collective", which gather the figures of all ranks. Where ranks may be lost, every rank knows
// where the folder is, so that the rank that becomes 0 can go on with it.
//
// An error while training goes on costs a warning. Errors: CommError; CheckpointError at the end of
// the run. Thread safety: the rank's own thread only.

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/records/progress_line.hpp"
#include "apps/records/rank_figures.hpp"
#include "apps/records/run_folder.hpp"
#include "apps/train/data_plan.hpp"
#include "apps/train/evaluation.hpp"
#include "apps/train/evaluator.hpp"
#include "apps/train/run_config.hpp"
#include "apps/train/step_runner.hpp"
#include "apps/train/training_setup.hpp"

namespace gossamer::apps {

class RunRecorder {
 public:
  /// Adds to the content of status.json, and to the faults there, what other parts of the run know.
  using AddStatus = std::function<void(Json& status, std::vector<std::string>& faults)>;

  /// All arguments must outlive this object.
  RunRecorder(const RunConfig& config, const TrainingSetup& setup, const DataPlan& data,
              StepRunner& runner, Evaluator& evaluator, AddStatus add_status);

  /// The run begins now. `folder` is null on all ranks but rank 0, and on a rank that joins.
  void begin(std::unique_ptr<RunFolder> folder);
  /// The folder, on the rank that is 0 at present; null: on another rank, and before begin().
  [[nodiscard]] RunFolder* folder() { return folder_.get(); }
  [[nodiscard]] const RunFolder* folder() const { return folder_.get(); }
  /// Whether the folder holds the best model; false on a rank without the folder.
  [[nodiscard]] bool has_best_model() const {
    return folder_ != nullptr && evaluator_.best_step() > 0;
  }
  /// Where the folder is. Known on rank 0, and on all ranks after share_folder() or
  /// set_folder().
  [[nodiscard]] const std::string& folder_path() const { return folder_path_; }
  /// Collective: the ranks learn from rank 0 where the folder is, and which process writes it.
  void share_folder();
  /// Takes what rank 0 says of the folder.
  void set_folder(std::string path, std::string writer);
  /// On rank 0, takes the folder over from a rank that is lost. Returns true if it has done so.
  bool take_over_folder();

  /// Seconds since the run began.
  [[nodiscard]] double elapsed_s() const;
  /// The run began so many seconds ago.
  void set_elapsed(double seconds);
  /// The model's metrics, with those of the run before it was resumed.
  [[nodiscard]] PipelineMetrics total_metrics() const;
  /// Adds bytes that the model's metrics do not count.
  void add_bytes_sent(double bytes) { earlier_metrics_.bytes_sent += bytes; }
  /// The consensus distance of the records from now on.
  void set_consensus(double distance) { last_consensus_ = distance; }

  /// Adds to environment.json, after the first step, how ranks of a host read each other's blocks.
  void note_sharing();
  /// Collective. Looks whether the window's losses diverge, writes its record if there shall be
  /// one, and starts a new window.
  void end_window(bool is_recorded);
  void write_evaluation(const Evaluation& evaluation);
  /// Collective, when ranks were lost or have joined, and before any rank makes steps that it
  /// lacks. Every rank learns the records whose figures some rank has gathered. Three ranks,
  /// log.every: 1:
  ///   1. All gather the figures of step 5, and the gather of rank 2 alone ends.
  ///   2. Rank 0 dies before it has written the record. Rank 2 makes step 6.
  ///   3. Rank 1 learns the record of step 5 from rank 2, and only then makes step 6 as well.
  ///   4. Rank 2 may die now: rank 1 becomes rank 0 and writes the record (write_unwritten()).
  /// If rank 2 dies before 3, rank 1 has made no step after 5, and its next window has step 5.
  void share_unwritten();
  /// On rank 0: writes the records of share_unwritten() that the folder lacks.
  void write_unwritten();
  /// Writes the record, and the status of a run that goes on.
  void write_record(const Json& record);
  /// Writes the status of a run that goes on.
  void write_status();
  /// Writes how the run has failed. Where all ranks end for a lost rank, one of them writes for
  /// rank 0.
  void write_failure(const std::exception& error);
  /// Collective. The figures of the whole run, without its evaluation.
  Summary summarize();
  /// On rank 0, writes the end of the run.
  void write_end(const Summary& summary, const Evaluation& evaluation,
                 const std::vector<std::string>& checksums);
  /// On rank 0, shows the end of the run to the user.
  void show_end(const Summary& summary, const Evaluation& evaluation);
  /// Ends a line of progress that the terminal may hold.
  void end_line() { progress_.end_line(); }

  /// Shows the visitor the seconds and figures on which nothing that is computed depends.
  void visit(StateVisitor& visitor);

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] Json status(std::string_view state) const;
  /// The fields of a window's record that are the same on all ranks. `rows`: the figures of the
  /// ranks.
  Json begin_record(const ProgressState& state, const std::vector<WindowFigures>& rows);
  /// Writes into the folder while training goes on: an error is a warning, the first of several in
  /// a row alone.
  void write_or_warn(const std::function<void()>& write);

  const RunConfig& config_;
  const TrainingSetup& setup_;
  const DataPlan& data_;
  StepRunner& runner_;
  Evaluator& evaluator_;
  AddStatus add_status_;
  ProgressLine progress_;
  std::unique_ptr<RunFolder> folder_;
  std::string folder_path_;
  /// The process that writes the folder, as status.json names that process.
  std::string folder_writer_;
  Clock::time_point begin_ = Clock::now();
  /// Seconds of waiting for peers, as of the last record.
  double last_wait_s_ = 0.0;
  std::optional<double> last_consensus_;
  /// Steps left out because of a gradient that was not finite, as of the last record. Of all ranks,
  /// if each leaves out steps of its own.
  std::int64_t num_skipped_ = 0;
  /// Where ranks may be lost, on every rank: the records of the last figures that this rank has
  /// gathered. The next gather ends only when rank 0 has written them.
  std::vector<Json> unwritten_;
  /// The step whose figures this rank is gathering, or was when the gather failed.
  std::optional<std::int64_t> gathered_step_;
  /// The last write of write_or_warn() has failed.
  bool is_broken_ = false;
  bool has_noted_sharing_ = false;
  /// Metrics of the run before it was resumed, and bytes that the model's metrics do not count.
  PipelineMetrics earlier_metrics_;
};

}  // namespace gossamer::apps
