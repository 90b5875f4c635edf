#include "comm/elastic/last_watch.hpp"

#include <chrono>
#include <future>
#include <string>

#include <gtest/gtest.h>

namespace gossamer::membership {
namespace {

TEST(LastWatch, EndsAProcessThatStays) {
  std::promise<std::string> ended;
  LastWatch watch(std::chrono::milliseconds(1),
                  [&](const std::string& why) { ended.set_value(why); });
  watch.arm("a mate is lost");
  EXPECT_EQ(ended.get_future().get(), "a mate is lost");
}

TEST(LastWatch, LeavesAProcessAloneThatLeaves) {
  int num_ends = 0;
  {
    LastWatch watch(std::chrono::hours(1), [&](const std::string&) { ++num_ends; });
    watch.arm("a mate is lost");
    watch.disarm();
    watch.arm("another one is");
  }
  EXPECT_EQ(num_ends, 0);
}

}  // namespace
}  // namespace gossamer::membership
