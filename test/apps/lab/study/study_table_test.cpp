// The results of a study against values worked out by hand.

#include "apps/lab/study/study_table.hpp"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace gossamer::apps {
namespace {

StudyRow row(const std::string& topology, std::int64_t seed, double accuracy) {
  return {.name = topology + "__sgd__even__seed" + std::to_string(seed),
          .topology = topology,
          .optimizer = "sgd",
          .seed = seed,
          .workers = 4,
          .steps = 10,
          .accuracy_mean_model = accuracy,
          .accuracy_worst_local = accuracy / 2,
          .loss_mean_model = 0.5,
          .consensus_distance = 0.25,
          .bytes_per_step = 2000,
          .train_s = 1.5};
}

TEST(Moments, AreThoseOfASample) {
  // Mean 5, squares of the differences 9 + 1 + 1 + 1 + 0 + 0 + 4 + 16 = 32, divided by 7.
  const Moments moments = moments_of({2, 4, 4, 4, 5, 5, 7, 9});
  EXPECT_DOUBLE_EQ(moments.mean, 5.0);
  EXPECT_DOUBLE_EQ(moments.deviation, std::sqrt(32.0 / 7.0));
  EXPECT_DOUBLE_EQ(moments_of({3}).mean, 3.0);
  EXPECT_TRUE(std::isnan(moments_of({3}).deviation));
  EXPECT_EQ(moments_of({0.5, 0.5}).deviation, 0.0);
}

TEST(StudyTable, GroupsOverSeedsAlone) {
  std::vector<StudyRow> rows = {row("ring", 1, 0.5), row("complete", 1, 0.75), row("ring", 2, 0.7),
                                row("ring", 3, 0.6)};
  rows.push_back(row("ring", 1, 0.1));
  rows.back().dirichlet_alpha = 0.5;
  const std::vector<StudyGroup> groups = group_over_seeds(rows);
  ASSERT_EQ(groups.size(), 3U);
  EXPECT_EQ(groups[0].topology, "ring");
  EXPECT_EQ(groups[0].num_seeds, 3);
  EXPECT_DOUBLE_EQ(groups[0].accuracy_mean_model.mean, 0.6);
  // 0.01 + 0.01 + 0, divided by 2.
  EXPECT_NEAR(groups[0].accuracy_mean_model.deviation, 0.1, 1e-12);
  EXPECT_NEAR(groups[0].accuracy_worst_local.deviation, 0.05, 1e-12);
  EXPECT_EQ(groups[0].bytes_per_step.mean, 2000);
  EXPECT_EQ(groups[1].topology, "complete");
  EXPECT_EQ(groups[1].num_seeds, 1);
  EXPECT_EQ(groups[2].dirichlet_alpha, 0.5);
  EXPECT_EQ(groups[2].accuracy_mean_model.mean, 0.1);
}

TEST(StudyTable, IsTheSameInEveryForm) {
  const std::vector<StudyRow> rows = {row("ring", 1, 0.5), row("ring", 2, 0.7),
                                      row("complete", 1, 0.75)};
  const std::vector<StudyGroup> groups = group_over_seeds(rows);
  EXPECT_EQ(
      to_markdown(groups),
      "| labels | topology | optimizer | seeds | mean model, % | worst local, % | consensus "
      "distance | sent per step |\n"
      "|---|---|---|---|---|---|---|---|\n"
      "| even | ring | sgd | 2 | 60.00 \u00b1 14.14 | 30.00 \u00b1 7.07 | 2.50e-01 \u00b1 0.00e+00 "
      "| 2.0 kB |\n"
      "| even | complete | sgd | 1 | 75.00 | 37.50 | 2.50e-01 | 2.0 kB |\n");
  const std::string text = to_text(groups);
  EXPECT_NE(
      text.find("\n  even    ring      sgd        2      60.00 \u00b1 14.14  30.00 \u00b1 7.07 "),
      std::string::npos)
      << text;
  const Json json = to_json(groups);
  EXPECT_EQ(json[0]["accuracy_mean_model"]["mean"], 0.6);
  EXPECT_TRUE(json[0]["dirichlet_alpha"].is_null());
  EXPECT_EQ(Json::parse(json.dump())[1]["accuracy_mean_model"]["deviation"], Json());
  EXPECT_EQ(to_json(rows)[2]["run"], "complete__sgd__even__seed1");
}

TEST(StudyTable, WritesOneLineOfCsvPerRun) {
  std::vector<StudyRow> rows = {row("ring", 1, 0.5), row("ring", 2, 0.1)};
  rows[1].dirichlet_alpha = 0.25;
  EXPECT_EQ(to_csv(rows),
            "run,topology,optimizer,dirichlet_alpha,seed,workers,steps,accuracy_mean_model,"
            "accuracy_worst_local,loss_mean_model,consensus_distance,bytes_sent_per_step,train_s\n"
            "ring__sgd__even__seed1,ring,sgd,,1,4,10,0.5,0.25,0.5,0.25,2000,1.5\n"
            "ring__sgd__even__seed2,ring,sgd,0.25,2,4,10,0.1,0.05,0.5,0.25,2000,1.5\n");
}

TEST(StudyTable, TakesRowsFromFinalRecords) {
  const StudyRun run{.name = "n", .topology = "ring", .optimizer = "sgd", .seed = 3};
  const Json record = {{"kind", "final"},           {"step", 12},
                       {"world_size", 4},           {"accuracy_mean_model", 0.5},
                       {"loss_mean_model", Json()}, {"bytes_sent_per_step", 640}};
  const StudyRow made = make_row(run, record);
  EXPECT_EQ(made.topology, "ring");
  EXPECT_EQ(made.seed, 3);
  EXPECT_EQ(made.steps, 12);
  EXPECT_EQ(made.workers, 4);
  EXPECT_EQ(made.accuracy_mean_model, 0.5);
  EXPECT_EQ(made.bytes_per_step, 640);
  EXPECT_TRUE(std::isnan(made.loss_mean_model));
}

}  // namespace
}  // namespace gossamer::apps
