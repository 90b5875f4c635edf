#include "apps/lab/plan/plan_request.hpp"

#include <array>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/text.hpp"
#include "optim/codec.hpp"
#include "optim/registry.hpp"

namespace gossamer::apps {
namespace {

constexpr double kAssumedComputeMs = 100.0;
constexpr std::size_t kMostBuckets = 256;
constexpr NumberRule kBytes{.min = 1.0, .max = 1e15};
constexpr NumberListOption kBucketBytes{"bucket_bytes", "the bytes of each bucket", {kBytes}};
constexpr PathOption kLinksFile{"name", "the file of the links"};
constexpr ChoiceOption kPlannedDevice{
    "device", "where the ranks compute", {.words = {"cpu", "cuda"}, .fallback = "cpu"}};
constexpr NumberRule kMicroseconds{.min = 0.0, .max = 1e9};
constexpr NumberRule kGbit{.min = 1e-6, .max = 1e6};

constexpr OptionalNumberOption kModelBytes{
    "model_bytes", "bytes of all parameters, 4 for each in float32", {kBytes}, "see bucket_bytes"};
constexpr NumberOption kBucketMb{
    "bucket_mb", "MiB at which a bucket closes", {.fallback = 25.0, .min = 1e-6, .max = 1e6}};
constexpr OptionalNumberOption kComputeMs{"compute_ms",
                                          "milliseconds of forward and backward of a step",
                                          {{.min = 0.0, .max = 1e9}},
                                          "those of the links, or 100"};
constexpr NumberOption kBackwardShare{"backward_share",
                                      "share of --compute-ms that the backward pass takes",
                                      {.fallback = 2.0 / 3.0, .min = 0.0, .max = 1.0}};
constexpr NumberOption kStragglerCv{
    "straggler_cv",
    "standard deviation of compute times over ranks and steps, divided by the mean",
    {.fallback = 0.0, .min = 0.0, .max = 10.0}};
constexpr IntegerOption kWorldSize{
    "world_size", "number of ranks", {.min = 1, .max = kMostPlannedRanks}};
constexpr IntegerOption kLocalWorldSize{
    "local_world_size", "ranks on each node", {.fallback = 1, .min = 1, .max = kMostPlannedRanks}};
constexpr OptionalNumberOption kWithinLatency{
    "within_latency_us", "microseconds of a message within nodes", {kMicroseconds}, "the links'"};
constexpr OptionalNumberOption kWithinGbit{
    "within_gbit", "Gbit/s within nodes", {kGbit}, "the links'"};
constexpr OptionalNumberOption kBetweenLatency{
    "between_latency_us", "microseconds of a message between nodes", {kMicroseconds}, "the links'"};
constexpr OptionalNumberOption kBetweenGbit{
    "between_gbit", "Gbit/s between nodes", {kGbit}, "the links'"};
constexpr OptionalNumberOption kUpdateGbytes{
    "update_gbytes",
    "GB of parameters that a rank mixes and updates in a second, 0 for in no time",
    {{.min = 0.0, .max = 1e6}},
    "the links'"};
constexpr NumberOption kBudget{"budget",
                               "share of a step's time that communication may add",
                               {.fallback = 0.1, .min = 0.0, .max = 1e3}};
constexpr IntegerOption kSeed{
    "seed", "seed of the stragglers' random delays", {.fallback = 1, .min = 0}};

constexpr std::array kNumbers = option_list(
    kModelBytes, kBucketMb, kComputeMs, kBackwardShare, kStragglerCv, kWorldSize, kLocalWorldSize,
    kWithinLatency, kWithinGbit, kBetweenLatency, kBetweenGbit, kUpdateGbytes, kBudget, kSeed);

/// Replaces what is given. Returns whether anything is.
bool replace_speed(const std::optional<double>& latency_us, const std::optional<double>& gbit,
                   const std::optional<LinkSpeed>& assumed, std::optional<LinkSpeed>& speed) {
  if (!latency_us && !gbit) return false;
  if (!speed) speed = assumed;
  if (latency_us) speed->latency_s = 1e-6 * *latency_us;
  if (gbit) speed->bandwidth = 1e9 / 8.0 * *gbit;
  return true;
}

Links read_given_links(const Options& root) {
  if (!root.has("links")) return assumed_links();
  const Options section = root.named_section("links");
  if (!section.has("name")) return read_links(section);
  return read_links_file(section.read(kLinksFile));
}

Links read_all_links(const Options& root, std::vector<std::string>& assumed) {
  Links links = read_given_links(root);
  const bool gives_within = replace_speed(root.read(kWithinLatency), root.read(kWithinGbit),
                                          assumed_links().within, links.within);
  const bool gives_between = replace_speed(root.read(kBetweenLatency), root.read(kBetweenGbit),
                                           assumed_links().between, links.between);
  const auto update_gbytes = root.read(kUpdateGbytes);
  if (update_gbytes) links.update_bytes_per_s = 1e9 * *update_gbytes;
  if (!root.has("links") && !gives_within && !gives_between) {
    assumed.emplace_back(
        "Links are assumed to carry 10 GB/s within a node and 10 Gbit/s between nodes; measure "
        "yours with gossamer bench links, and give the file as --links.");
  }
  return links;
}

double read_compute_ms(const Options& root, const Links& links, std::vector<std::string>& assumed) {
  const auto given = root.read(kComputeMs);
  if (given) return *given;
  if (links.compute_s) return 1e3 * *links.compute_s;
  assumed.push_back(concat("Forward and backward are assumed to take ", kAssumedComputeMs,
                           " ms; gossamer bench compute CONFIG measures yours, or "
                           "gs.measure_compute() in Python; give it as --compute-ms."));
  return kAssumedComputeMs;
}

std::vector<double> read_buckets(const Options& root, int world_size) {
  const auto model_bytes = root.read(kModelBytes);
  const double bucket_mb = root.read(kBucketMb);
  std::vector<double> buckets = root.read(kBucketBytes);
  if (buckets.size() > kMostBuckets) {
    root.fail("bucket_bytes",
              concat("has ", buckets.size(), " buckets, allowed: up to ", kMostBuckets));
  }
  if (!buckets.empty()) return buckets;
  if (!model_bytes) {
    root.fail("model_bytes",
              "is missing, allowed: the bytes of all parameters (4 for each in float32), or "
              "bucket_bytes");
  }
  return planned_buckets(*model_bytes, bucket_mb * 1024.0 * 1024.0, world_size);
}

void read_algorithms(const Options& root, PlanOptions& options) {
  const PlugIns& own = options.own;
  if (root.has("algorithm")) {
    for (const Options& section : root.named_sections("algorithm")) {
      const std::string name =
          section.read(kAlgorithmName, std::nullopt, algorithm_names(own.algorithms));
      options.algorithms.emplace_back(name, section, own.algorithms);
    }
  }
  const Options section = root.named_section("optimizer");
  options.optimizer =
      make_optimizer(section.read(kOptimizerName, "adamw", optimizer_names(own.optimizers)),
                     section, own.optimizers);
  options.is_plain = root.has("codec");
  options.codec = find_codec(root.read(kCodecName, "fp32", codec_names(own.codecs)), own.codecs);
  if (options.codec != nullptr) options.is_plain = false;
}

World read_world(const Options& root) {
  const auto size = static_cast<int>(root.read(kWorldSize));
  const auto local = static_cast<int>(root.read(kLocalWorldSize));
  if (size % local != 0) {
    root.fail("local_world_size",
              concat(local, " does not divide the ", size, " ranks, allowed: a divisor of it"));
  }
  return {.size = size, .node_size = local};
}

nlohmann::ordered_json question_of(const PlanRequest& request) {
  const StepModel& model = request.options.model;
  return {{"world_size", model.world.size},     {"local_world_size", model.world.node_size},
          {"links", to_json(model.links)},      {"compute_ms", 1e3 * model.compute_s},
          {"bucket_bytes", model.bucket_bytes}, {"straggler_cv", model.straggler_cv},
          {"budget", request.options.budget},   {"assumed", request.assumed}};
}

}  // namespace

std::span<const OptionEntry> plan_numbers() { return kNumbers; }

PlanRequest read_plan(const Options& root, const PlugIns& own) {
  PlanRequest request;
  PlanOptions& options = request.options;
  options.own = own;
  const World world = read_world(root);
  const Links links = read_all_links(root, request.assumed);
  options.model = {.world = world,
                   .links = links,
                   .compute_s = 1e-3 * read_compute_ms(root, links, request.assumed),
                   .backward_share = root.read(kBackwardShare),
                   .straggler_cv = root.read(kStragglerCv),
                   .seed = static_cast<std::uint64_t>(root.read(kSeed)),
                   .bucket_bytes = read_buckets(root, world.size)};
  options.budget = root.read(kBudget);
  options.on_gpu = root.read(kPlannedDevice) == "cuda";
  read_algorithms(root, options);
  root.reject_unknown();
  return request;
}

nlohmann::ordered_json to_json(const PlanRequest& request, const Plan& plan) {
  nlohmann::ordered_json json = question_of(request);
  json.update(to_json(plan));
  return json;
}

}  // namespace gossamer::apps
