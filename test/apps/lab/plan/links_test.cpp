// Link constants: reading and writing them.

#include "apps/lab/plan/links.hpp"

#include "test/core/ranks.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.hpp"

namespace gossamer::apps {
namespace {

std::string complaint(const char* text) {
  return what_of<ConfigError>([&] { read_links(Options::parse(text)); });
}

TEST(Links, AreReadAsTheyAreWritten) {
  Links links = assumed_links();
  EXPECT_EQ(read_links(Options::parse(to_json(links).dump())), links);
  links.between.reset();
  links.within->lost_s_per_byte = 3e-11;
  links.update_bytes_per_s = 2.5e9;
  links.compute_s = 0.125;
  links.backend = "tcp";
  links.within->num_streams = 8;
  links.within->loss_rate = 0.25;
  EXPECT_EQ(read_links(Options::parse(to_json(links).dump())), links);
}

TEST(Links, SayWhatIsWrongInAFile) {
  EXPECT_TRUE(contains(complaint("{}"), "within: is missing"));
  EXPECT_TRUE(contains(complaint("between: {latency_s: 1}"), "between.bandwidth_bytes_per_s"));
  EXPECT_TRUE(contains(complaint("between: {latency_s: -1, bandwidth_bytes_per_s: 1}"),
                       "between.latency_s"));
  EXPECT_TRUE(contains(complaint("between: {latency_s: 0, bandwidth_bytes_per_s: 0}"),
                       "between.bandwidth_bytes_per_s"));
  EXPECT_TRUE(contains(complaint("between: {latency_s: 0, bandwidth_bytes_per_s: fast}"),
                       "between.bandwidth_bytes_per_s"));
  EXPECT_TRUE(contains(complaint("{between: {latency_s: 0, bandwidth_bytes_per_s: 1}, betwixt: 1}"),
                       "betwixt"));
  EXPECT_TRUE(contains(complaint("between: {latency_s: 0, bandwidth_bytes_per_s: 1, streams: 0}"),
                       "between.streams"));
  EXPECT_TRUE(
      contains(complaint("between: {latency_s: 0, bandwidth_bytes_per_s: 1, loss_rate: 1.5}"),
               "between.loss_rate"));
  EXPECT_TRUE(contains(complaint("{between: {latency_s: 0, bandwidth_bytes_per_s: 1}, backend: x}"),
                       "backend"));
  EXPECT_THROW(read_links_file("/no/such/links.json"), ConfigError);
}

}  // namespace
}  // namespace gossamer::apps
