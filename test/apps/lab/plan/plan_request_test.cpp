// Requests for plans: their keys, defaults and refusals.

#include "apps/lab/plan/plan_request.hpp"

#include "test/base/thrown.hpp"

#include <string>
#include <string_view>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

PlanRequest request_of(const std::string& yaml) { return read_plan(Options::parse(yaml)); }

TEST(PlanRequest, AssumesWhatIsNotGiven) {
  const PlanRequest request = request_of("world_size: 4, model_bytes: 1e8");
  const PlanOptions& options = request.options;
  EXPECT_EQ(request.assumed.size(), 2U);
  EXPECT_EQ(options.model.world.size, 4);
  EXPECT_EQ(options.model.world.node_size, 1);
  EXPECT_EQ(options.model.links, assumed_links());
  EXPECT_EQ(options.model.compute_s, 0.1);
  EXPECT_EQ(options.model.bucket_bytes, planned_buckets(1e8, 25.0 * 1024 * 1024, 4));
  EXPECT_TRUE(contains(request.assumed.back(), "gossamer bench compute CONFIG"));
  EXPECT_TRUE(contains(request.assumed.back(), "--compute-ms"));
  EXPECT_EQ(options.budget, 0.1);
  EXPECT_TRUE(options.algorithms.empty());
  EXPECT_EQ(options.codec, nullptr);
  EXPECT_FALSE(options.is_plain);
  EXPECT_FALSE(options.on_gpu);
}

TEST(PlanRequest, TakesWhatIsGiven) {
  const PlanRequest request = request_of(
      "world_size: 8, local_world_size: 2, bucket_bytes: [5e5, 1e6], device: cuda, budget: 0.2, "
      "links: {within: {latency_s: 1e-5, bandwidth_bytes_per_s: 1e9}, compute_s: 0.02}, "
      "between_gbit: 4, update_gbytes: 2, algorithm: [relay, {name: outer, every: 20}], "
      "codec: bf16, seed: 7, straggler_cv: 0.5");
  const StepModel& model = request.options.model;
  EXPECT_TRUE(request.assumed.empty());
  EXPECT_EQ(model.world.node_size, 2);
  EXPECT_EQ(model.bucket_bytes, (std::vector<double>{5e5, 1e6}));
  EXPECT_EQ(model.links.within->bandwidth, 1e9);
  EXPECT_EQ(model.links.between->bandwidth, 5e8);
  EXPECT_EQ(model.links.between->latency_s, assumed_links().between->latency_s);
  EXPECT_EQ(model.links.update_bytes_per_s, 2e9);
  EXPECT_DOUBLE_EQ(model.compute_s, 0.02);
  EXPECT_EQ(model.seed, 7U);
  EXPECT_EQ(model.straggler_cv, 0.5);
  EXPECT_TRUE(request.options.on_gpu);
  EXPECT_EQ(request.options.budget, 0.2);
  ASSERT_EQ(request.options.algorithms.size(), 2U);
  EXPECT_EQ(request.options.algorithms[1].given(), "every: 20");
  EXPECT_EQ(request.options.codec->name(), "bf16");
  EXPECT_FALSE(request.options.is_plain);
}

TEST(PlanRequest, TakesPlainMessagesAloneWhereTheUserNamesThem) {
  const PlanOptions options = request_of("world_size: 4, model_bytes: 1e8, codec: fp32").options;
  EXPECT_EQ(options.codec, nullptr);
  EXPECT_TRUE(options.is_plain);
}

TEST(PlanRequest, RefusesWhatCannotBePlanned) {
  const auto says = [](const std::string& yaml, const std::string& part) {
    const std::string what = what_of<ConfigError>([&] { (void)request_of(yaml); });
    EXPECT_TRUE(contains(what, part)) << yaml << ": " << what;
  };
  says("model_bytes: 1e6", "world_size: is missing");
  says("world_size: 4", "model_bytes: is missing, allowed: ");
  says("world_size: 5000, model_bytes: 1e6", "world_size: 5000 is out of range, allowed: ");
  says("world_size: 4, local_world_size: 3, model_bytes: 1e6", "3 does not divide the 4 ranks");
  says("world_size: 4, model_bytes: 0", "model_bytes: 0 is out of range");
  says("world_size: 4, model_byte: 1e6, model_bytes: 1e6", "model_byte");
  says("world_size: 4, model_bytes: 1e6, links: {betwen: 1}", "links");
  says("world_size: 4, model_bytes: 1e6, links: no_such.json", "no_such.json");
  says("world_size: 4, model_bytes: 1e6, algorithm: [nix]", "allowed: one of gossip");
  says("world_size: 4, model_bytes: 1e6, algorithm: [{name: outer, evry: 2}]", "evry");
  says("world_size: 4, model_bytes: 1e6, codec: int9", "codec: int9 is unknown");
  says("world_size: 4, model_bytes: 1e6, device: tpu", "allowed: one of cpu, cuda");
  says("world_size: 4, model_bytes: 1e6, far: true", "far");
}

TEST(PlanRequest, ListsItsNumbersWithTheirRanges) {
  for (const OptionEntry& entry : plan_numbers()) {
    const std::string world = entry.name == "world_size" ? "" : "world_size: 4, ";
    const std::string yaml = concat(world, "bucket_bytes: [1e6], ", entry.name, ": x");
    const std::string what = what_of<ConfigError>([&] { (void)request_of(yaml); });
    EXPECT_TRUE(contains(what, concat(entry.name, ": x is not "))) << yaml << ": " << what;
    constexpr std::string_view kMark = "allowed: ";
    const std::string range = what.substr(what.find(kMark) + kMark.size());
    EXPECT_TRUE(contains(entry.text(), concat("; ", range, ", "))) << entry.text();
  }
}

TEST(PlanRequest, WritesWhatWasAskedForBeforeThePlan) {
  const PlanRequest request = request_of("world_size: 2, bucket_bytes: [5e5], compute_ms: 7.5");
  const Plan plan = make_plan(request.options);
  const auto json = to_json(request, plan);
  EXPECT_EQ(json["world_size"], 2);
  EXPECT_EQ(json["compute_ms"], 7.5);
  EXPECT_EQ(json["bucket_bytes"], std::vector<double>{5e5});
  EXPECT_EQ(json["assumed"].size(), 1U);
  EXPECT_EQ(json["rows"], to_json(plan)["rows"]);
}

}  // namespace
}  // namespace gossamer::apps
