// What a run's folder holds, who may write it, and what becomes of earlier runs.

#include "apps/records/run_folder.hpp"

#include "test/apps/folder.hpp"
#include "test/base/thrown.hpp"

#include <cmath>
#include <csignal>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/error.hpp"

namespace gossamer::apps {
namespace {

using Names = std::vector<std::string>;

std::string refusal_of_folder(const std::string& path, IfFinished if_finished) {
  return what_of<CheckpointError>([&] { const RunFolder run(path, {}, if_finished); });
}

void finish_run(const std::string& path, const std::string& seed) {
  RunFolder run(path, {{"run.seed", seed}}, IfFinished::kReplace);
  run.write_metrics({{"seed", seed}});
  std::ofstream(run.begin_file(RunFolder::kModel)) << "a model";
  run.write_status({{"state", "done"}}, true);
}

TEST(RunFolder, HoldsConfigurationMetricsModelAndStatus) {
  const Folder folder;
  const std::string path = folder.file("a/b");
  RunFolder run(path, {{"run.seed", "1"}, {"algorithm", "gossip"}}, IfFinished::kRefuse);
  EXPECT_FALSE(run.replaces_earlier_run());
  EXPECT_EQ(run.remarks(), Names());
  EXPECT_EQ(run.path(), path);
  EXPECT_EQ(read_file(path + "/config.yaml"), "run:\n  seed: 1\nalgorithm: gossip\n");
  run.write_metrics({{"kind", "step"}, {"loss", 0.5}});
  run.write_metrics({{"kind", "step"}, {"loss", std::nan("")}, {"lr", INFINITY}});
  EXPECT_EQ(read_file(path + "/metrics.jsonl"),
            "{\"kind\":\"step\",\"loss\":0.5}\n{\"kind\":\"step\",\"loss\":null,\"lr\":null}\n");
  for (const bool sync : {false, true}) {
    run.write_status({{"state", "running"}, {"sync", sync}}, sync);
    EXPECT_EQ(Json::parse(read_file(path + "/status.json")),
              Json({{"state", "running"}, {"sync", sync}}));
  }
  EXPECT_EQ(run.begin_file(RunFolder::kModel), path + "/model.safetensors");
}

TEST(RunFolder, KeepsAnEarlierRunUntilItHasSomething) {
  const Folder folder;
  const std::string path = folder.file("out");
  finish_run(path, "1");
  std::ofstream(path + "/notes.txt") << "the user's own";
  RunFolder run(path, {{"run.seed", "2"}}, IfFinished::kReplace);
  EXPECT_TRUE(run.replaces_earlier_run());
  run.write_status({{"state", "failed"}}, true);
  EXPECT_EQ(read_file(path + "/config.yaml"), "run:\n  seed: 1\n");
  EXPECT_EQ(read_file(path + "/metrics.jsonl"), "{\"seed\":\"1\"}\n");
  EXPECT_EQ(Json::parse(read_file(path + "/status.json"))["state"], "done");
  EXPECT_TRUE(fs::exists(run.model_path()));

  run.write_metrics({{"seed", "2"}});
  EXPECT_EQ(read_file(path + "/config.yaml"), "run:\n  seed: 2\n");
  EXPECT_EQ(read_file(path + "/metrics.jsonl"), "{\"seed\":\"2\"}\n");
  EXPECT_FALSE(fs::exists(path + "/status.json")) << "the earlier run's status";
  EXPECT_FALSE(fs::exists(run.model_path()));
  EXPECT_EQ(read_file(path + "/notes.txt"), "the user's own");
  std::ofstream(run.begin_file(RunFolder::kModel)) << "a model";
  EXPECT_TRUE(fs::exists(run.model_path()));
}

TEST(RunFolder, RefusesToReplaceAFinishedRunUnlessTold) {
  const Folder folder;
  const std::string path = folder.file("out");
  finish_run(path, "1");
  const std::string wanted = path +
                             " holds a finished run. To keep it, type run.output_dir=" + path +
                             "-2; to replace it, type --overwrite";
  EXPECT_EQ(refusal_of_folder(path, IfFinished::kRefuse), wanted);
  EXPECT_EQ(refusal_of_folder(path + "/", IfFinished::kRefuse), wanted);
  EXPECT_THROW(check_run_folder(path, IfFinished::kRefuse), CheckpointError);
  check_run_folder(path, IfFinished::kReplace);
  check_run_folder(path, IfFinished::kNextNumber);
  check_run_folder(folder.file("fresh"), IfFinished::kRefuse);
  // A model without a status is a finished run as well.
  fs::remove(path + "/status.json");
  fs::create_directory(path + "-2");
  EXPECT_NE(refusal_of_folder(path, IfFinished::kRefuse).find("run.output_dir=" + path + "-3;"),
            std::string::npos);
  fs::remove(path + "/model.safetensors");
  EXPECT_EQ(refusal_of_folder(path, IfFinished::kRefuse), "");
}

TEST(RunFolder, TakesTheNextNumber) {
  const Folder folder;
  const std::string path = folder.file("out");
  finish_run(path, "1");
  finish_run(path + "-2", "1");
  const RunFolder third(path, {{"run.output_dir", "\"out\""}}, IfFinished::kNextNumber);
  EXPECT_EQ(third.path(), path + "-3");
  EXPECT_EQ(third.remarks(),
            Names{path + " holds a finished run; this run goes into " + path + "-3"});
  EXPECT_EQ(read_file(third.path() + "/config.yaml"), "run:\n  output_dir: \"" + path + "-3\"\n");
  // While it is under way, another one goes on counting.
  EXPECT_EQ(RunFolder(path, {}, IfFinished::kNextNumber).path(), path + "-4");
}

TEST(RunFolder, BelongsToOneRunAtATime) {
  const Folder folder;
  const std::string path = folder.file("out");
  {
    const RunFolder run(path, {}, IfFinished::kRefuse);
    for (const IfFinished each : {IfFinished::kRefuse, IfFinished::kReplace}) {
      EXPECT_EQ(refusal_of_folder(path, each)
                    .find(concat(path,
                                 " belongs to another run that is under way "
                                 "(process ",
                                 getpid(), " on ")),
                0U)
          << refusal_of_folder(path, each);
    }
  }
  EXPECT_EQ(refusal_of_folder(path, IfFinished::kRefuse), "");
}

TEST(RunFolder, TakesNoRecordsOfAWriterThatWakesUpAfterATakeOver) {
  const Folder folder;
  const std::string path = folder.file("out");
  RunFolder slow(path, {}, IfFinished::kRefuse);
  slow.write_metrics({{"step", 1}});
  RunFolder successor(path, {}, IfFinished::kTakeOver);
  successor.take_over(1);
  successor.write_metrics({{"step", 2}, {"members", 3}});
  slow.write_metrics({{"step", 2}, {"members", 4}});
  successor.write_metrics({{"step", 3}});
  EXPECT_EQ(read_file(path + "/metrics.jsonl"),
            "{\"step\":1}\n{\"step\":2,\"members\":3}\n{\"step\":3}\n");
}

TEST(RunFolder, KnowsItsLastRecords) {
  const Folder folder;
  RunFolder out(folder.file("out"), {}, IfFinished::kRefuse);
  EXPECT_FALSE(out.has_record({{"kind", "step"}, {"step", 2}}));
  out.write_metrics({{"kind", "step"}, {"step", 2}});
  EXPECT_TRUE(out.has_record({{"kind", "step"}, {"step", 2}}));
  EXPECT_FALSE(out.has_record({{"kind", "eval"}, {"step", 2}}));
  EXPECT_FALSE(out.has_record({{"kind", "step"}, {"step", 3}}));
}

TEST(RunFolder, KnowsRecordsOfMembersByTheirEpoch) {
  const Folder folder;
  RunFolder out(folder.file("out"), {}, IfFinished::kRefuse);
  out.write_metrics({{"kind", "members"}, {"step", 2}, {"epoch", 1}});
  EXPECT_TRUE(out.has_record({{"kind", "members"}, {"step", 2}, {"epoch", 1}}));
  EXPECT_FALSE(out.has_record({{"kind", "members"}, {"step", 2}, {"epoch", 2}}));
}

TEST(RunFolder, ResumesAfterAStep) {
  const Folder folder;
  const std::string path = folder.file("out");
  const std::string kept = "{\"kind\":\"step\",\"step\":1}\n{\"kind\":\"eval\",\"step\":2}\n";
  fs::create_directories(path);
  for (const std::string rest :
       {"", "{\"kind\":\"step\",\"step\":3}\n", "{\"kind\":\"final\",\"step\":2}\n",
        "{\"kind\":\"step\",\"step\":2"}) {
    write_bytes(path + "/metrics.jsonl", kept + rest);
    RunFolder run(path, {}, IfFinished::kContinue);
    EXPECT_EQ(run.resume_after(2), Json({{"kind", "eval"}, {"step", 2}})) << rest;
    EXPECT_EQ(read_file(path + "/metrics.jsonl"), kept) << rest;
  }
}

TEST(RunFolder, BeginsAfterAStepWhereNoRunWas) {
  const Folder folder;
  const std::string path = folder.file("out");
  RunFolder run(path, {}, IfFinished::kContinue);
  EXPECT_EQ(run.resume_after(2), Json(nullptr));
  run.write_metrics({{"step", 3}});
  EXPECT_EQ(read_file(path + "/metrics.jsonl"), "{\"step\":3}\n");
}

TEST(RunFolder, RefusesInTheWordsOfItsUser) {
  const Folder folder;
  const std::string path = folder.file("out");
  fs::create_directories(path + "/checkpoints/step-000000001");
  write_bytes(path + "/checkpoints/step-000000001/manifest.json", "{}");
  const FolderWords words{.keep = "name ", .go_on = "load ", .replace = "say so"};
  EXPECT_EQ(what_of<CheckpointError>(
                [&] { const RunFolder run(path, {}, IfFinished::kRefuse, nullptr, words); }),
            path + " holds checkpoints of a run that has not finished. To keep it, name " + path +
                "-2; to continue it, load " + path + "; to replace it, say so");
}

TEST(RunFolder, CorrectsTheStatusOfARunThatDied) {
  const Folder folder;
  const std::string path = folder.file("out");
  {
    const RunFolder run(path, {}, IfFinished::kRefuse);
    run.write_status({{"state", "running"}, {"step", 7}}, false);
  }
  const RunFolder next(path, {}, IfFinished::kRefuse);
  EXPECT_EQ(next.remarks(), Names{"the run that was in " + path + " died after step 7"});
  const Json status = Json::parse(read_file(path + "/status.json"));
  EXPECT_EQ(status["state"], "died");
  EXPECT_EQ(status["step"], 7);
}

TEST(RunFolder, ClearsAwayWhatAKilledRunWasWriting) {
  const Folder folder;
  const std::string path = folder.file("out");
  fs::create_directories(path);
  for (const char* const name : {"model.safetensors.partial-12-0", "a.partial-b", "a.partial"}) {
    write_bytes(concat(path, "/", name), "x");
  }
  const RunFolder run(path, {}, IfFinished::kRefuse);
  EXPECT_FALSE(fs::exists(path + "/model.safetensors.partial-12-0"));
  EXPECT_TRUE(fs::exists(path + "/a.partial-b") && fs::exists(path + "/a.partial"));
}

TEST(RunFolder, SurvivesAStatusOfOtherTypes) {
  const Folder folder;
  const std::string path = folder.file("out");
  { const RunFolder run(path, {}, IfFinished::kRefuse); }
  for (const std::string text : {R"({"state": 5})", R"({"state": ["done"]})", "[]", "7", ""}) {
    write_bytes(path + "/status.json", text);
    EXPECT_EQ(refusal_of_folder(path, IfFinished::kRefuse), "") << text;
  }
  write_bytes(path + "/status.json", R"({"state": "running", "step": "x"})");
  EXPECT_EQ(refusal_of_folder(path, IfFinished::kRefuse), "");
}

TEST(RunFolder, EscapesWhatIsNoUtf8) {
  const Folder folder;
  RunFolder run(folder.file("out"), {}, IfFinished::kRefuse, {{"host", "caf\xe9"}});
  run.write_metrics({{"kind", "caf\xe9"}});
  run.write_status({{"message", "caf\xe9"}}, false);
  EXPECT_TRUE(Json::accept(read_file(folder.file("out/status.json"))));
  EXPECT_TRUE(Json::accept(read_file(folder.file("out/metrics.jsonl"))));
}

TEST(RunFolder, GoesOnWhenTheDiskHasRoomAgain) {
  const Folder folder;
  const std::string path = folder.file("out");
  RunFolder run(path, {}, IfFinished::kRefuse);
  run.write_metrics({{"step", 1}});
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{.rlim_cur = 20, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(run.write_metrics({{"step", 2}, {"text", "much more than there is room for"}}),
               CheckpointError);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  run.write_metrics({{"step", 3}});
  EXPECT_EQ(read_file(path + "/metrics.jsonl"), "{\"step\":1}\n{\"step\":3}\n");
}

TEST(RunFolder, SaysWhenItCannotBeMade) {
  const Folder folder;
  std::ofstream(folder.file("taken")) << "a file";
  for (const char* const path : {"taken", "taken/below"}) {
    const std::string message = refusal_of_folder(folder.file(path), IfFinished::kRefuse);
    EXPECT_NE(message.find(folder.file(path)), std::string::npos);
    EXPECT_NE(message.find("run.output_dir"), std::string::npos);
  }
}

}  // namespace
}  // namespace gossamer::apps
