#include "apps/lab/plan/links.hpp"

#include <nlohmann/json.hpp>

#include "base/yaml.hpp"

namespace gossamer::apps {
namespace {

constexpr NumberOption kLatency{
    "latency_s", "seconds of a short message", {.min = 0.0, .max = 1e3}};
constexpr NumberOption kLost{"lost_s_per_byte",
                             "seconds that a byte costs both ranks",
                             {.fallback = 0.0, .min = 0.0, .max = 1.0}};
constexpr OptionalNumberOption kLossRate{
    "loss_rate", "the share of packets that are lost", {{.min = 0.0, .max = 1.0}}};
constexpr OptionalIntegerOption kNumStreams{
    "streams", "connections that the link was measured with", {{.min = 1, .max = 1'000'000}}};
constexpr NumberOption kBandwidth{"bandwidth_bytes_per_s",
                                  "bytes that a rank sends in a second",
                                  {.min = 0.0, .max = 1e15, .above_min = true}};
constexpr NumberOption kUpdateSpeed{"update_bytes_per_s",
                                    "bytes of parameters that a rank mixes and updates in a second",
                                    {.fallback = 0.0, .min = 0.0, .max = 1e15}};
constexpr OptionalNumberOption kComputeTime{
    "compute_s", "seconds of forward and backward of a step", {{.min = 0.0, .max = 1e6}}};
constexpr ChoiceOption kMeasuredBackend{
    "backend", "that the links were measured with", {.words = {"threads", "mpi", "tcp"}}};

std::optional<LinkSpeed> read_speed(const Options& section, std::string_view key) {
  if (!section.has(key)) return std::nullopt;
  const Options speed = section.section(key);
  return LinkSpeed{.latency_s = speed.read(kLatency),
                   .bandwidth = speed.read(kBandwidth),
                   .lost_s_per_byte = speed.read(kLost),
                   .num_streams = speed.read(kNumStreams),
                   .loss_rate = speed.read(kLossRate)};
}

}  // namespace

Links assumed_links() {
  return {.within = LinkSpeed{.latency_s = 1e-5, .bandwidth = 1e10},
          .between = LinkSpeed{.latency_s = 5e-5, .bandwidth = 1.25e9}};
}

Links read_links(const Options& section) {
  Links links{.within = read_speed(section, "within"), .between = read_speed(section, "between")};
  links.update_bytes_per_s = section.read(kUpdateSpeed);
  links.compute_s = section.read(kComputeTime);
  if (section.has("backend")) links.backend = section.read(kMeasuredBackend);
  links.regions = read_regions(section);
  if (!links.within && !links.between) {
    section.fail("within", "is missing, and so is between; allowed: one of them or both");
  }
  // The file of a measurement also lists the pairs; their keys are not for this function.
  section.section("pairs").accept_unknown();
  section.section("sum").accept_unknown();
  section.reject_unknown();
  return links;
}

Links read_links_file(const std::string& path) { return read_links(Options(read_yaml_file(path))); }

nlohmann::ordered_json to_json(const LinkSpeed& speed) {
  nlohmann::ordered_json json = {{"latency_s", speed.latency_s},
                                 {"bandwidth_bytes_per_s", speed.bandwidth}};
  if (speed.lost_s_per_byte > 0.0) json["lost_s_per_byte"] = speed.lost_s_per_byte;
  if (speed.num_streams) json["streams"] = *speed.num_streams;
  if (speed.loss_rate) json["loss_rate"] = *speed.loss_rate;
  return json;
}

nlohmann::ordered_json to_json(const Links& links) {
  nlohmann::ordered_json json;
  if (links.within) json["within"] = to_json(*links.within);
  if (links.between) json["between"] = to_json(*links.between);
  if (links.update_bytes_per_s > 0.0) json["update_bytes_per_s"] = links.update_bytes_per_s;
  if (links.compute_s) json["compute_s"] = *links.compute_s;
  if (!links.backend.empty()) json["backend"] = links.backend;
  const Regions& regions = links.regions;
  for (int a = 0; a < regions.count(); ++a) {
    const Region& region = regions.list[static_cast<std::size_t>(a)];
    json["regions"].push_back({{"name", region.name}, {"nodes", region.num_nodes}});
    for (int b = a + 1; b < regions.count(); ++b) {
      const auto other = static_cast<std::size_t>(b);
      const RegionPath& path = regions.paths[static_cast<std::size_t>(a)][other];
      json["across"].push_back({{"between", {region.name, regions.list[other].name}},
                                {"latency_s", path.latency_s},
                                {"bandwidth_bytes_per_s", path.bandwidth}});
    }
  }
  return json;
}

}  // namespace gossamer::apps
