// Runs that lose ranks and take others in. Ranks are threads; a rank dies when its data fail.

#include "test/apps/train/mortal_samples.hpp"
#include "test/apps/train/train_run.hpp"
#include "test/comm/tcp/tcp_ranks.hpp"
#include "test/support/fault_injector.hpp"
#include "test/support/sanitized.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "apps/train/agreement.hpp"
#include "base/error.hpp"
#include "comm/backends.hpp"

namespace gossamer::apps {
namespace {

std::string yaml_of(std::int64_t steps, const std::string& backend = "tcp",
                    const std::string& algorithm = "gossip", std::string_view more_of_comm = "") {
  return concat("run: {steps: ", steps, "}\nalgorithm: {name: ", algorithm, "}\n",
                "model: {name: mlp, hidden: 8}\n"
                "data: {name: glyphs, train_size: 300, val_size: 70, batch_size: ",
                kBatchSize,
                ", prefetch: 0, dirichlet_alpha: 0.5}\n"
                "optimizer: {lr: 0.01}\n"
                "topology: {name: one-peer-exp}\n"
                "comm: {backend: ",
                backend, ", timeout_s: 60", more_of_comm,
                "}\n"
                "fault: {mode: survive}\n"
                "train: {ema: 0.9}\n"
                "log: {level: off, every: 2, consensus_every: 3, eval_every: 3}\n");
}

struct LossyRun {
  explicit LossyRun(std::string text) : yaml(std::move(text)) {}

  std::string yaml;
  Folder folder;
  std::shared_ptr<MemoryStore> store = std::make_shared<MemoryStore>();
  Ledger ledger;
  std::shared_ptr<FaultInjector> injector = {};
  /// Rank 0 calls this function when it has written a record of steps.
  std::function<void(const ProgressState&)> at_record = [](const ProgressState&) {};

  /// Launches one rank, and returns its exit code.
  int launch_rank(int rank, int size, const std::function<void(MortalSamples&)>& prepare) {
    const bool joins = rank < 0;
    return launch("tcp", tcp::rank_options(store, rank, size, options_of(joins)),
                  [&](Communicator& communicator, const World& world) {
                    return train(communicator, world, joins, prepare);
                  });
  }

  /// Runs all ranks on threads. Returns their exit codes.
  std::vector<int> launch_all(const std::string& backend, int size,
                              const std::function<void(int rank, MortalSamples&)>& prepare) {
    std::vector<int> codes(static_cast<std::size_t>(size), -1);
    if (backend == "threads") {
      LaunchOptions options = options_of(/*joins=*/false);
      options.num_ranks = size;
      // The one code of the process says that some have come to the end.
      EXPECT_EQ(launch(backend, options,
                       [&](Communicator& communicator, const World& world) {
                         const int rank = world.rank;
                         int& code = codes[static_cast<std::size_t>(rank)];
                         try {
                           return code = train(communicator, world, /*joins=*/false,
                                               [&](MortalSamples& mine) { prepare(rank, mine); });
                         } catch (const std::exception& error) {
                           code = static_cast<int>(exit_code_of(error));
                           throw;
                         }
                       }),
                0);
      return codes;
    }
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        codes[static_cast<std::size_t>(rank)] =
            launch_rank(rank, size, [&](MortalSamples& samples) { prepare(rank, samples); });
      });
    }
    threads.clear();
    return codes;
  }

  [[nodiscard]] LaunchOptions options_of(bool joins) const {
    LaunchOptions options{.timeout_s = 60.0, .log_level = LogLevel::kOff};
    options.fault = {
        .survives = true, .silence_s = 20.0, .joins = joins, .wrap = inject_faults(injector)};
    return options;
  }

  int train(Communicator& communicator, const World& world, bool joins,
            const std::function<void(MortalSamples&)>& prepare) {
    const RunConfig config =
        read_run_config(Options(parse_yaml(yaml, "test")), world, "", {}, joins);
    const Dataset whole = config.data->load(1);
    const auto samples = std::make_shared<MortalSamples>(whole.train, ledger);
    prepare(*samples);
    TrainingLoop loop(config, {.communicator = communicator,
                               .world = world,
                               .logger = {},
                               .data = std::make_shared<const Dataset>(
                                   Dataset{.train = samples, .validation = whole.validation}),
                               .observer = at_record,
                               .joins = joins});
    std::unique_ptr<RunFolder> out;
    if (world.rank == 0 && !joins) {
      out = std::make_unique<RunFolder>(folder.file("out"), config.resolved, IfFinished::kRefuse);
    }
    loop.run(std::move(out));
    return 0;
  }

  std::vector<nlohmann::json> records(const std::string& kind) {
    std::vector<nlohmann::json> found;
    std::istringstream lines(read_file(folder.file("out/metrics.jsonl")));
    for (std::string line; std::getline(lines, line);) {
      nlohmann::json record = nlohmann::json::parse(line);
      if (record["kind"] == kind) found.push_back(std::move(record));
    }
    return found;
  }

  std::vector<std::int64_t> steps_of(const std::string& kind) {
    std::vector<std::int64_t> steps;
    for (const auto& record : records(kind)) steps.push_back(record["step"]);
    return steps;
  }
};

/// A backend and an algorithm.
using Way = std::pair<std::string, std::string>;
class AnyVictim : public testing::TestWithParam<std::tuple<Way, int, int>> {};

TEST_P(AnyVictim, IsSurvivedByTheOthers) {
  constexpr int kSize = 4;
  // One epoch of the data.
  constexpr std::int64_t kSteps = 7;
  const auto& [way, victim, death] = GetParam();
  const auto& [backend, algorithm] = way;
  LossyRun run(yaml_of(kSteps, backend, algorithm));
  const std::vector<int> codes =
      run.launch_all(backend, kSize, [&](int rank, MortalSamples& samples) {
        if (rank == std::get<1>(GetParam())) samples.die_in(std::get<2>(GetParam()));
      });
  for (int rank = 0; rank < kSize; ++rank) {
    EXPECT_EQ(codes[static_cast<std::size_t>(rank)],
              rank == victim ? static_cast<int>(ExitCode::kData) : 0);
  }
  const auto final = run.records("final");
  ASSERT_EQ(final.size(), 1U);
  EXPECT_EQ(final[0]["world_size"], kSize - 1);
  if (algorithm == "allreduce") {
    const auto& checksums = final[0]["parameter_checksums"];
    EXPECT_EQ(checksums, nlohmann::json(std::vector(kSize - 1, checksums[0])));
  }
  EXPECT_EQ(run.records("members").size(), 1U);
  EXPECT_EQ(run.records("members")[0]["members"].size(), 3U);
  EXPECT_EQ(run.records("members")[0]["lost"], nlohmann::json({victim}));
  EXPECT_EQ(run.records("members")[0]["joined"], nlohmann::json::array());
  // The last step has a record, and so has every interval that a death has cut short.
  EXPECT_EQ(run.steps_of("step").back(), kSteps);
  EXPECT_TRUE(std::ranges::is_sorted(run.steps_of("step")));
  for (const auto& record : run.records("step")) EXPECT_TRUE(record["loss"].is_number());
  EXPECT_EQ(run.steps_of("eval").back(), kSteps);
  // A sample is used at most once; lost are the dead rank's, and those of incomplete batches.
  const std::map<std::int64_t, int> uses = run.ledger.uses();
  for (const auto& [sample, count] : uses) EXPECT_EQ(count, 1) << "sample " << sample;
  EXPECT_EQ(std::ssize(uses), kBatchSize * (kSize * death + (kSize - 1) * (kSteps - death)));
}

const auto kWays = testing::Values(Way("threads", "gossip"), Way("tcp", "gossip"),
                                   Way("threads", "allreduce"), Way("tcp", "allreduce"));
INSTANTIATE_TEST_SUITE_P(Survival, AnyVictim,
                         testing::Combine(kWays, testing::Values(0, 3), testing::Values(0, 3)));
INSTANTIATE_TEST_SUITE_P(WideSurvival, AnyVictim,
                         testing::Combine(kWays, testing::Values(0, 1, 3),
                                          testing::Values(0, 1, 3, 6)));

/// All ranks have the figures of a record when rank 0 writes it.
TEST(Survival, WritesTheRecordThatRankZeroHasDiedBefore) {
  for (const std::string left : {"", "{\"kind\":\"st"}) {
    SCOPED_TRACE(left);
    LossyRun run(yaml_of(7));
    run.at_record = [&](const ProgressState& state) {
      if (state.step != 4) return;
      std::string text = read_file(run.folder.file("out/metrics.jsonl"));
      text.resize(text.rfind('\n', text.size() - 2) + 1);
      std::ofstream(run.folder.file("out/metrics.jsonl")) << text << left;
      throw DataError("this rank dies");
    };
    const std::vector<int> codes = run.launch_all("tcp", 4, [](int, MortalSamples&) {});
    EXPECT_EQ(codes, (std::vector<int>{static_cast<int>(ExitCode::kData), 0, 0, 0}));
    const std::vector<std::int64_t> steps = run.steps_of("step");
    EXPECT_EQ(std::ranges::count(steps, 4), 1);
    EXPECT_TRUE(std::ranges::is_sorted(steps));
    EXPECT_EQ(steps.back(), 7);
    for (const auto& record : run.records("step")) {
      EXPECT_EQ(record["rank_loss"].size(), record["step"] <= 4 ? 4U : 3U);
    }
  }
}

TEST(Survival, RecordsEveryEvaluationOnceWhereverTheWriterDiesAfterAGather) {
  for (std::int64_t skip = 8; skip < 24; ++skip) {
    SCOPED_TRACE(skip);
    LossyRun run(yaml_of(6, "tcp", "gossip", ", shared_memory: false"));
    run.injector =
        std::make_shared<FaultInjector>(std::vector<Fault>{{.kind = Fault::Kind::kFail,
                                                            .moment = Fault::Moment::kAfter,
                                                            .member = 0,
                                                            .what = "gather",
                                                            .skip = skip}});
    run.launch_all("tcp", 4, [](int /*rank*/, MortalSamples&) {});
    EXPECT_EQ(run.steps_of("eval"), (std::vector<std::int64_t>{3, 6}));
  }
}

/// Four ranks gather the figures of step 3. The writer dies before it writes, rank 2 alone has all
/// figures and makes step 4, and dies somewhere in the recovery. Where rank 2 dies before the
/// others know its record, they have not passed step 3, and gather its figures again.
TEST(Survival, RecordsEveryStepWhereARankDiesThatIsAhead) {
  std::string yaml = yaml_of(7, "tcp", "gossip", ", shared_memory: false");
  const std::string intervals = "every: 2, consensus_every: 3, eval_every: 3";
  yaml.replace(yaml.find(intervals), intervals.size(),
               "every: 1, consensus_every: 0, eval_every: 0");
  const Fault cancel{
      .kind = Fault::Kind::kCancel, .moment = Fault::Moment::kAfter, .what = "sum", .skip = 3};
  for (std::int64_t skip = 8; skip < 24; ++skip) {
    SCOPED_TRACE(skip);
    LossyRun run(yaml);
    std::vector<Fault> faults(4, cancel);
    faults[0].kind = Fault::Kind::kFail;
    faults[1].member = 1;
    faults[2].member = 3;
    faults[3] = {.kind = Fault::Kind::kFail, .member = 2, .what = "gather", .skip = skip};
    run.injector = std::make_shared<FaultInjector>(faults);
    run.launch_all("tcp", 4, [](int /*rank*/, MortalSamples&) {});
    EXPECT_EQ(run.steps_of("step"), (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7}));
  }
}

/// An exchange of rank 1 fails in the third step, and nobody is lost.
TEST(Survival, GoesOnWithAllWhenAnExchangeFails) {
  for (const std::string backend : {"threads", "tcp"}) {
    SCOPED_TRACE(backend);
    // Ranks that share memory wait for one another by operations only where they must.
    LossyRun run(yaml_of(7, backend, "gossip", ", shared_memory: false"));
    run.injector = std::make_shared<FaultInjector>(
        std::vector<Fault>{{.kind = Fault::Kind::kCancel, .member = 1, .bucket = 0, .skip = 2}});
    EXPECT_EQ(run.launch_all(backend, 4, [](int /*rank*/, MortalSamples&) {}),
              std::vector<int>(4, 0));
    EXPECT_EQ(run.injector->num_strikes(), 1);
    ASSERT_EQ(run.records("members").size(), 1U);
    EXPECT_EQ(run.records("members")[0]["members"], nlohmann::json({0, 1, 2, 3}));
    EXPECT_EQ(run.steps_of("step").back(), 7);
    EXPECT_EQ(run.records("final").at(0)["world_size"], 4);
    // Nobody has left a sample out, and nobody has used one twice.
    const std::map<std::int64_t, int> uses = run.ledger.uses();
    EXPECT_EQ(std::ssize(uses), 4 * 7 * kBatchSize);
    for (const auto& [sample, count] : uses) EXPECT_EQ(count, 1) << "sample " << sample;
  }
}

TEST(Survival, ScalesTheLearningRate) {
  std::string yaml = yaml_of(7);
  const std::string mode = "mode: survive";
  yaml.replace(yaml.find(mode), mode.size(), mode + ", scale_lr: true");
  LossyRun run(yaml);
  run.launch_all("tcp", 4, [](int rank, MortalSamples& samples) {
    if (rank == 1) samples.die_in(3);
  });
  const auto records = run.records("step");
  ASSERT_GE(records.size(), 2U);
  EXPECT_DOUBLE_EQ(records.front()["lr"], 0.01);
  EXPECT_DOUBLE_EQ(records.back()["lr"], 0.0075);
}

/// The topology is for powers of two, so that of three ranks is another one.
TEST(Survival, TakesOneInThatJoins) {
  constexpr int kSize = 2;
  LossyRun run(yaml_of(400));
  std::vector<int> codes(kSize + 1, -1);
  std::atomic<bool> has_begun = false;
  std::atomic<bool> has_joined = false;
  // So that the run does not end before.
  const auto waits = [&](std::int64_t batch) {
    if (batch >= 3) has_begun = true;
    if (batch >= 3 && !has_joined) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kSize; ++rank) {
      threads.emplace_back([&, rank] {
        codes[static_cast<std::size_t>(rank)] =
            run.launch_rank(rank, kSize, [&](MortalSamples& samples) { samples.at_batch = waits; });
        has_begun = true;
      });
    }
    threads.emplace_back([&] {
      while (!has_begun) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      codes[kSize] = run.launch_rank(-1, 2, [&](MortalSamples& samples) {
        samples.at_batch = [&](std::int64_t) { has_joined = true; };
      });
    });
  }
  EXPECT_EQ(codes, std::vector<int>(kSize + 1, 0));
  EXPECT_TRUE(has_joined);
  ASSERT_EQ(run.records("members").size(), 1U);
  EXPECT_EQ(run.records("members")[0]["members"], nlohmann::json({0, 1, 2}));
  EXPECT_EQ(run.records("members")[0]["joined"], nlohmann::json({2}));
  const auto final = run.records("final");
  ASSERT_EQ(final.size(), 1U);
  EXPECT_EQ(final[0]["world_size"], kSize + 1);
  EXPECT_EQ(final[0]["step"], 400);
}

}  // namespace
}  // namespace gossamer::apps
