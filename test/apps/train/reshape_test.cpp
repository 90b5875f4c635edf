// Runs that stop, and go on with other ranks or batches: each sample of an epoch is used once.

#include "test/apps/train/mortal_samples.hpp"
#include "test/apps/train/train_run.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "apps/train/checkpointer.hpp"
#include "apps/train/resume.hpp"
#include "apps/train/stop_signals.hpp"
#include "base/text.hpp"
#include "comm/backends.hpp"
#include "core/checkpoint/manifest.hpp"

namespace gossamer::apps {
namespace {

constexpr std::int64_t kNumSamples = 300;

/// A part of a run, from one stop to the next.
struct Leg {
  int num_ranks = 1;
  std::int64_t batch_size = kBatchSize;
  std::int64_t accumulate = 1;
  /// The steps from the beginning of the run; nothing: all of the epochs.
  std::optional<std::int64_t> steps = {};
  std::int64_t epochs = 1;

  [[nodiscard]] std::string yaml() const {
    return concat("run: {seed: 3, ", steps ? "steps: " : "epochs: ", steps.value_or(epochs),
                  ", checkpoint_every: 1000}\n"
                  "model: {name: mlp, hidden: 8}\n"
                  "data: {name: glyphs, train_size: ",
                  kNumSamples, ", val_size: 30, batch_size: ", batch_size,
                  ", prefetch: 0, dirichlet_alpha: 0.5}\n"
                  "train: {accumulate: ",
                  accumulate,
                  "}\n"
                  "optimizer: {lr: 0.01}\n"
                  "topology: {name: ring}\n"
                  "log: {level: off, every: 2}\n");
  }
};

class StoppedRun {
 public:
  /// Goes on to the end of the leg. Returns the exit code.
  int train(const Leg& leg) {
    const std::string out = folder_.file("out");
    const std::string checkpoint = newest_in(out);
    const StopSignals stop;
    const auto body = [&](Communicator& communicator, const World& world) {
      const RunConfig config = read_text(leg.yaml(), {}, world);
      const Dataset whole = config.data->load(1);
      const bool resumes = !checkpoint.empty();
      const bool reshapes =
          resumes && (leg.num_ranks != last_.num_ranks || leg.accumulate != last_.accumulate);
      if (resumes) check_resumable(read_manifest(checkpoint), config, world, checkpoint, reshapes);
      TrainingLoop loop(config, {.communicator = communicator,
                                 .world = world,
                                 .logger = {},
                                 .data = std::make_shared<const Dataset>(Dataset{
                                     .train = std::make_shared<MortalSamples>(whole.train, ledger_),
                                     .validation = whole.validation}),
                                 .observer = [](const ProgressState&) {},
                                 .stop = &stop,
                                 .saves_checkpoints = true,
                                 .resumes = resumes,
                                 .reshapes = reshapes});
      loop.run(folder_of_rank(world, out, config, resumes), checkpoint);
      return 0;
    };
    const int code = launch("threads", {.num_ranks = leg.num_ranks, .timeout_s = 60}, body);
    last_ = leg;
    return code;
  }

  /// Goes through the legs. Each sample has then been used so many times, after so many steps.
  void expect(const std::vector<Leg>& legs, int num_uses, std::int64_t num_steps) {
    for (const Leg& leg : legs) ASSERT_EQ(train(leg), 0) << leg.yaml();
    const std::map<std::int64_t, int> uses = ledger_.uses();
    EXPECT_EQ(std::ssize(uses), kNumSamples);
    for (const auto& [sample, count] : uses) EXPECT_EQ(count, num_uses) << "sample " << sample;
    const auto status = nlohmann::json::parse(read_file(folder_.file("out/status.json")));
    EXPECT_EQ(status["step"], num_steps);
    EXPECT_EQ(status["total_steps"], num_steps);
  }

 private:
  Folder folder_;
  Ledger ledger_;
  Leg last_;
};

TEST(Reshape, GoesOnInTheDataWithOtherBatches) {
  StoppedRun().expect(
      {{.num_ranks = 4, .steps = 3}, {.num_ranks = 2, .batch_size = 30, .accumulate = 3}}, 1,
      3 + 1);
  StoppedRun().expect({{.num_ranks = 3, .accumulate = 2, .steps = 2}, {.num_ranks = 2}}, 1, 2 + 9);
  // A batch of another size alone needs no --reshape.
  StoppedRun().expect({{.num_ranks = 3, .steps = 4}, {.num_ranks = 3, .batch_size = 20}}, 1, 4 + 3);
}

TEST(Reshape, GoesOnInTheDataAsOftenAsItIsStopped) {
  // 120 samples, 40, 40, 60, and 40 more.
  StoppedRun().expect({{.num_ranks = 4, .steps = 3},
                       {.num_ranks = 2, .steps = 5},
                       {.num_ranks = 2, .steps = 7},
                       {.num_ranks = 3, .steps = 9},
                       {.num_ranks = 1}},
                      1, 9 + 4);
}

TEST(Reshape, MakesAsManyEpochsAsItIsAskedFor) {
  // The second epoch is dealt to two ranks from its beginning.
  StoppedRun().expect({{.num_ranks = 4, .steps = 3}, {.num_ranks = 2, .epochs = 2}}, 2, 12 + 15);
  // The same, asked for later.
  StoppedRun().expect(
      {{.num_ranks = 4, .steps = 3}, {.num_ranks = 2}, {.num_ranks = 2, .epochs = 2}}, 2, 12 + 15);
}

}  // namespace
}  // namespace gossamer::apps
