// Studys that run: what they write, and what they keep when they are started again.

#include "apps/lab/study/study.hpp"

#include "test/apps/folder.hpp"

#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace gossamer::apps {
namespace {

const std::string kRing = "ring__sgd__even__seed1";
const std::string kAllreduce = "allreduce__sgd__even__seed1";

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// A study of two short runs in a folder of the test's own.
class StudyTest : public testing::Test {
 protected:
  void SetUp() override {
    write(folder_.file("study.yaml"),
          "base:\n"
          "  model: {name: mlp, hidden: 4}\n"
          "  data: {name: glyphs, train_size: 64, val_size: 32, batch_size: 4}\n"
          "  log: {level: off, every: 2}\n"
          "study:\n"
          "  workers: 2\n"
          "  steps: 4\n"
          "  topologies: [allreduce, ring]\n"
          "  optimizers: [sgd]\n");
  }

  StudyOutcome run(std::vector<std::string> overrides = {}, bool overwrite = false) {
    overrides.push_back("study.output_dir=" + folder_.file("out"));
    return run_study({.config_path = folder_.file("study.yaml"),
                      .overrides = overrides,
                      .overwrite = overwrite});
  }
  /// A file of a run.
  [[nodiscard]] std::string file(const std::string& name, const std::string& what) const {
    return folder_.file("out/" + name + "/" + what);
  }
  /// Metrics hold times, so a run that is made again writes others.
  [[nodiscard]] std::string metrics(const std::string& name) const {
    return read_file(file(name, "metrics.jsonl"));
  }

  Folder folder_;
};

TEST_F(StudyTest, WritesEveryRunAndTheTable) {
  const StudyOutcome outcome = run();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.num_kept, 0);
  ASSERT_EQ(outcome.rows.size(), 2U);
  EXPECT_EQ(outcome.rows[0].name, kAllreduce);
  EXPECT_EQ(outcome.rows[1].name, kRing);
  EXPECT_EQ(outcome.rows[1].steps, 4);
  EXPECT_EQ(outcome.rows[1].workers, 2);
  EXPECT_GT(outcome.rows[1].bytes_per_step, 0);
  EXPECT_EQ(read_file(folder_.file("out/results.csv")), to_csv(outcome.rows));
  EXPECT_EQ(read_file(folder_.file("out/table.md")), to_markdown(group_over_seeds(outcome.rows)));
}

TEST_F(StudyTest, KeepsRunsThatHaveFinished) {
  const StudyOutcome first = run();
  const std::string before = metrics(kRing);
  const StudyOutcome second = run();
  EXPECT_EQ(second.num_kept, 2);
  EXPECT_EQ(metrics(kRing), before);
  EXPECT_EQ(to_csv(second.rows), to_csv(first.rows));
}

TEST_F(StudyTest, MakesRunsAnewThatWereStopped) {
  run();
  const std::string kept = metrics(kAllreduce);
  const std::string stopped = metrics(kRing);
  write(file(kRing, "status.json"), "{\"state\": \"running\", \"step\": 2}\n");
  const StudyOutcome outcome = run();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.num_kept, 1);
  EXPECT_EQ(outcome.rows.size(), 2U);
  EXPECT_EQ(metrics(kAllreduce), kept);
  EXPECT_NE(metrics(kRing), stopped);
  EXPECT_EQ(Json::parse(read_file(file(kRing, "status.json")))["state"], "done");
}

TEST_F(StudyTest, MakesRunsAnewWhoseFilesAreTorn) {
  run();
  write(file(kRing, "status.json"), "{\"state\"");
  EXPECT_EQ(run().num_kept, 1);
  write(file(kRing, "metrics.jsonl"), "{\"kind\": \"step\", \"step\": 2}\n{\"ki");
  EXPECT_EQ(run().num_kept, 1);
  write(file(kRing, "config.yaml"), "model: [");
  EXPECT_EQ(run().num_kept, 1);
  EXPECT_EQ(run().num_kept, 2);
}

TEST_F(StudyTest, RefusesToReplaceFinishedRunsOfOtherValues) {
  run();
  const std::string before = metrics(kRing);
  testing::internal::CaptureStderr();
  EXPECT_EQ(run({"base.model.hidden=5"}).exit_code, static_cast<int>(ExitCode::kCheckpoint));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("model.hidden is 4 there and 5 here"), std::string::npos) << said;
  EXPECT_NE(said.find("--overwrite"), std::string::npos) << said;
  EXPECT_EQ(metrics(kRing), before);
}

TEST_F(StudyTest, ReplacesFinishedRunsOfOtherValuesIfTold) {
  run();
  EXPECT_EQ(run({"base.model.hidden=5"}, true).num_kept, 0);
  EXPECT_EQ(run({"base.model.hidden=5", "study.steps=5"}, true).num_kept, 0);
  // What says nothing about the result does not matter.
  EXPECT_EQ(
      run({"base.model.hidden=5", "study.steps=5", "base.comm.timeout_s=17", "base.comm.streams=3"})
          .num_kept,
      2);
}

TEST_F(StudyTest, ReplacesFinishedRunsOfOtherWorkersIfTold) {
  run();
  testing::internal::CaptureStderr();
  EXPECT_EQ(run({"study.workers=3"}).exit_code, static_cast<int>(ExitCode::kCheckpoint));
  EXPECT_NE(testing::internal::GetCapturedStderr().find("2 workers there and 3 here"),
            std::string::npos);
  const StudyOutcome outcome = run({"study.workers=3"}, true);
  EXPECT_EQ(outcome.num_kept, 0);
  ASSERT_EQ(outcome.rows.size(), 2U);
  EXPECT_EQ(outcome.rows[1].workers, 3);
}

TEST_F(StudyTest, TrainsOnlyWhatIsNew) {
  run();
  const StudyOutcome outcome = run({"study.seeds=[1, 2]"});
  EXPECT_EQ(outcome.num_kept, 2);
  ASSERT_EQ(outcome.rows.size(), 4U);
  EXPECT_EQ(outcome.rows[3].name, "ring__sgd__even__seed2");
  EXPECT_EQ(group_over_seeds(outcome.rows).size(), 2U);
}

TEST_F(StudyTest, FindsWhatIsWrongWithAnyRunBeforeTheFirst) {
  testing::internal::CaptureStderr();
  const StudyOutcome outcome = run({"study.topologies=[ring, ringg]"});
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::kConfig));
  EXPECT_NE(said.find("did you mean ring?"), std::string::npos) << said;
  EXPECT_FALSE(fs::exists(folder_.file("out")));
}

TEST_F(StudyTest, NamesKeysAsTheyStandInTheFile) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(run({"base.model.hiden=3"}).exit_code, static_cast<int>(ExitCode::kConfig));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(said.find("command line: base.model.hiden: unknown key (did you mean hidden?)"), 0U)
      << said;
}

}  // namespace
}  // namespace gossamer::apps
