#include "base/markup.hpp"

#include <gtest/gtest.h>

namespace gossamer {
namespace {

TEST(Markup, EscapesTheCharactersThatMeanSomething) {
  EXPECT_EQ(escaped("a<b> & \"c\""), "a&lt;b&gt; &amp; &quot;c&quot;");
}

}  // namespace
}  // namespace gossamer
