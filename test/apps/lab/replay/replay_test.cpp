// Recorded cases through the real pipeline: decent-dp's own, where they are at hand, and cases made
// up here from the formulas.

#include "apps/lab/replay/replay.hpp"

#include "test/apps/lab/replay/case_writer.hpp"
#include "test/core/ranks.hpp"
#include "test/golden/golden_folder.hpp"

#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace gossamer::apps {
namespace {

ReplayReport replay_of(const RecordedCase& recorded, const ReplayOptions& options = {}) {
  ReplayReport result;
  run_ranks(
      recorded.world_size,
      [&](Communicator& communicator, const World&) {
        const ReplayReport report = replay(communicator, recorded, options);
        if (communicator.rank() == 0) result = report;
      },
      recorded.local_world_size);
  return result;
}

const std::vector<std::string>& golden_names() {
  static const std::vector<std::string> kNames = {"accum_adam_complete_n4",
                                                  "accum_adam_exp_n2_iter1",
                                                  "accum_adam_exp_n4_cosine",
                                                  "accum_adam_ring_n4_micro2_adaptive",
                                                  "accum_adamw_altexpring_n8_local2",
                                                  "accum_adamw_exp_n8_clip",
                                                  "accum_adamw_ring_n2_iter1",
                                                  "accum_adamw_ring_n4",
                                                  "accum_adamw_weightedring_n4_helperdecay",
                                                  "adam_ring_n4_helperdecay",
                                                  "adamw_complete_n4_clip_cosine",
                                                  "sgd_momentum_ring_n4",
                                                  "sgd_nesterov_exp_n8"};
  return kNames;
}

/// All bucket sizes, vector paths and numbers of threads that must make no difference.
void expect_repeats(const RecordedCase& recorded) {
  std::vector<std::optional<std::int64_t>> limits = {std::nullopt};
  if (recorded.clip_norm == 0.0) {
    limits.insert(limits.end(), {1, 1000, std::numeric_limits<std::int64_t>::max()});
  }
  for (const auto& limit : limits) {
    for (const SimdPath simd : available_simd_paths()) {
      const ReplayOptions options{.bucket_bytes = limit, .simd = simd, .num_threads = 2};
      const ReplayReport report = replay_of(recorded, options);
      EXPECT_TRUE(report.passed(options.tolerance))
          << name_of(simd) << ", buckets of " << limit.value_or(recorded.bucket_bytes) << ": "
          << report.steps.error << " after step " << report.steps.step << ", average "
          << report.average.error << report.bucket_difference;
      EXPECT_EQ(report.buckets_compared, !limit);
    }
  }
}

CaseSpec spec_of(const reference::Rule& rule) {
  CaseSpec spec;
  spec.rule = rule;
  return spec;
}

CaseSpec clipped_spec(double adaptive_factor = 1.0) {
  CaseSpec spec;
  spec.clip_norm = 0.9;
  spec.adaptive_factor = adaptive_factor;
  return spec;
}

class GoldenReplay : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Cases, GoldenReplay, testing::ValuesIn(golden_names()), own_name);

TEST_P(GoldenReplay, RepeatsTheRecord) {
  const auto folder = golden_folder() / GetParam();
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no folder " << folder;
  expect_repeats(read_recorded_case(folder.string()));
}

TEST(GoldenReplay, LeavesNoCaseOut) {
  if (!std::filesystem::exists(golden_folder())) GTEST_SKIP() << "no folder " << golden_folder();
  std::vector<std::string> present;
  for (const auto& entry : std::filesystem::directory_iterator(golden_folder())) {
    if (entry.is_directory()) present.push_back(entry.path().filename());
  }
  std::ranges::sort(present);
  EXPECT_EQ(present, golden_names());
}

TEST(Replay, RepeatsEveryOptimizer) {
  for (const reference::Rule& rule : std::vector<reference::Rule>{
           {.type = "sgd", .momentum = 0.8},
           {.type = "adam", .beta1 = 0.7, .eps = 1e-6},
           {.type = "adamw", .beta2 = 0.9, .eps = 1e-6},
           {.type = "accum_adam", .eps = 1e-6, .accum_iter = 2},
           {.type = "accum_adamw", .beta1 = 0.8, .eps = 1e-6, .accum_iter = 3}}) {
    SCOPED_TRACE(rule.type);
    const Folder folder;
    CaseWriter(spec_of(rule)).write(folder);
    expect_repeats(read_recorded_case(folder.file("")));
  }
}

TEST(Replay, RepeatsClippingAndTheAdaptiveFactor) {
  const Folder folder;
  CaseWriter(clipped_spec(0.6)).write(folder);
  expect_repeats(read_recorded_case(folder.file("")));
}

TEST(Replay, RefusesOtherBucketsWhereTheyAreClipped) {
  const Folder folder;
  CaseWriter(clipped_spec()).write(folder);
  const RecordedCase recorded = read_recorded_case(folder.file(""));
  run_ranks(3, [&](Communicator& communicator, const World&) {
    EXPECT_THROW(replay(communicator, recorded, {.bucket_bytes = 1}), ConfigError);
  });
  run_ranks(2, [&](Communicator& communicator, const World&) {
    EXPECT_THROW(replay(communicator, recorded, {}), ConfigError) << "another world size";
  });
}

TEST(Replay, NamesTheElementThatDiffers) {
  const Folder folder;
  CaseWriter(CaseSpec{}).write(folder);
  NpyArray expected = read_npy(folder.file("expected.npy"));
  // Step 5 of 7, rank 1 of 3, element 3 of p1, which follows the 40 of p0.
  const std::size_t place = (4 * 3 + 1) * 80 + 40 + 3;
  expected.values[place] += 1e-3F;
  write_npy(folder.file("expected.npy"), expected);
  const ReplayReport report = replay_of(read_recorded_case(folder.file("")));
  EXPECT_FALSE(report.passed(2e-6));
  EXPECT_TRUE(report.passed(2e-3));
  EXPECT_NEAR(report.steps.error, 1e-3, 1e-5);
  EXPECT_EQ(report.steps.step, 5);
  EXPECT_EQ(report.steps.rank, 1);
  EXPECT_EQ(report.steps.parameter, 1);
  EXPECT_EQ(report.steps.element, 3);
  expected.values[place] = std::numeric_limits<float>::quiet_NaN();
  write_npy(folder.file("expected.npy"), expected);
  EXPECT_FALSE(replay_of(read_recorded_case(folder.file(""))).passed(1e300));
}

TEST(Replay, ComparesAverageBucketsAndDistance) {
  const Folder folder;
  const nlohmann::json good = CaseWriter(CaseSpec{}).write(folder);
  const auto report_of = [&](const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json json = good;
    change(json);
    CaseWriter::write_json(folder, json);
    return replay_of(read_recorded_case(folder.file("")));
  };
  EXPECT_TRUE(report_of([](auto&) {}).passed(2e-6));
  const auto cut = report_of([](auto& json) { json["buckets"] = {{2}, {1, 0}}; });
  EXPECT_FALSE(cut.passed(2e-6));
  EXPECT_EQ(cut.bucket_difference, "bucket 0 holds the parameters 2, 1, recorded is 2");
  const auto size = report_of([](auto& json) { json["bucket_block_numel"][1] = 96; });
  EXPECT_EQ(size.bucket_difference, "bucket 1 has a block of 64 elements, recorded is 96");
  EXPECT_FALSE(report_of([](auto& json) { json["distance_to_center_rank0"] = 0.5; }).passed(2e-6));

  CaseWriter::write_json(folder, good);
  NpyArray average = read_npy(folder.file("final_avg.npy"));
  average.values[41] += 1e-4F;
  write_npy(folder.file("final_avg.npy"), average);
  const ReplayReport report = replay_of(read_recorded_case(folder.file("")));
  EXPECT_FALSE(report.passed(2e-6));
  EXPECT_EQ(report.average.parameter, 1);
  EXPECT_EQ(report.average.element, 1);
}

TEST(Replay, NoticesEveryRuleThatIsChanged) {
  const Folder folder;
  const nlohmann::json good = CaseWriter(clipped_spec()).write(folder);
  const std::vector<std::function<void(nlohmann::json&)>> changes = {
      [](auto& json) { json["mix_edge"][3] = 0; },
      [](auto& json) { json["edges"][0][0]["weight"] = 0.69; },
      [](auto& json) { json["lrs"][2] = 0.0; },
      [](auto& json) { json["params"][1]["weight_decay"] = 0.0; },
      [](auto& json) { json["optim"]["accum_iter"] = 4; },
      [](auto& json) { json["optim"]["betas"][0] = 0.9; },
      [](auto& json) { json["grad_clip_norm"] = 0.0; },
      [](auto& json) { json["adaptive_factor"] = 0.9; }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    nlohmann::json json = good;
    changes[i](json);
    CaseWriter::write_json(folder, json);
    EXPECT_FALSE(replay_of(read_recorded_case(folder.file(""))).passed(2e-6)) << "change " << i;
  }
}

TEST(RecordedCase, TakesBlocksThatWereMadeUnique) {
  const Folder folder;
  CaseSpec spec;
  spec.bucket_bytes = 256;
  spec.sizes = {40, 7, 60};
  spec.order = {2, 1, 0};
  spec.buckets = {{2}, {1, 0}};
  // The second block, 32 + 64, differs from the first one's 64 by itself.
  spec.bucket_block_numel = {64, 96};
  nlohmann::json json = CaseWriter(spec).write(folder);
  const auto difference = [&] {
    CaseWriter::write_json(folder, json);
    return replay_of(read_recorded_case(folder.file(""))).bucket_difference;
  };
  EXPECT_EQ(difference(), "");
  json["buckets"] = {{2}, {1, 0}};
  json["bucket_block_numel"] = {96, 128};
  EXPECT_NE(difference(), "") << "nothing forced the first block to grow";
}

TEST(RecordedCase, SaysWhatIsWrong) {
  const Folder folder;
  const nlohmann::json good = CaseWriter(CaseSpec{}).write(folder);
  const auto message = [&](const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json json = good;
    change(json);
    CaseWriter::write_json(folder, json);
    return what_of<DataError>([&] { read_recorded_case(folder.file("")); });
  };
  EXPECT_EQ(message([](auto&) {}), "");
  for (const char* key : {"world_size", "steps", "bucket_bytes", "params", "order", "buckets",
                          "bucket_block_numel", "edges", "mix_edge", "lrs", "optim", "total"}) {
    const std::string missing = message([&](auto& json) { json.erase(key); });
    EXPECT_TRUE(contains(missing, "case.json") && contains(missing, concat(key, ": is missing")))
        << missing;
    EXPECT_TRUE(contains(message([&](auto& json) { json[key] = "x"; }), concat(key, ": "))) << key;
  }
  const std::vector<std::pair<std::string, std::function<void(nlohmann::json&)>>> wrong = {
      {"order",
       [](auto& json) {
         json["order"] = {0, 0, 1};
       }},
      {"mix_edge", [](auto& json) { json["mix_edge"][1] = 2; }},
      {"mix_edge", [](auto& json) { json["mix_edge"][1] = -1; }},
      {"mix_edge", [](auto& json) { json["mix_edge"][0] = 0; }},
      {"edges",
       [](auto& json) {
         json["edges"][0][0]["ranks"] = {0, 3};
       }},
      {"edges", [](auto& json) { json["edges"][0][1]["ranks"] = {1}; }},
      {"lrs", [](auto& json) { json["lrs"].push_back(0.0); }},
      {"params", [](auto& json) { json["params"][1]["offset"] = 39; }},
      {"total", [](auto& json) { json["total"] = 79; }},
      {"grads.npy", [](auto& json) { json["micro_batches"] = 1; }},
      {"local_world_size", [](auto& json) { json["local_world_size"] = 2; }}};
  for (const auto& [key, change] : wrong) EXPECT_TRUE(contains(message(change), key)) << key;
  std::ofstream(folder.file("case.json")) << "{";
  EXPECT_THROW(read_recorded_case(folder.file("")), DataError);
  EXPECT_THROW(read_recorded_case(folder.file("elsewhere")), DataError);
}

}  // namespace
}  // namespace gossamer::apps
