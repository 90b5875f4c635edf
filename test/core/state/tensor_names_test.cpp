#include "core/state/tensor_names.hpp"

#include "test/base/thrown.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace gossamer {
namespace {

using Names = std::vector<std::string>;

std::string refusal(const Names& trained, const Names& others = {}) {
  return what_of<ConfigError>([&] { check_tensor_names(trained, others); });
}

TEST(TensorNames, MayHaveSlashes) {
  EXPECT_EQ(refusal({"x", "xx/m", "a/b", "a/c", "m/x", "running/mean"}, {"a", "y/x"}), "");
  EXPECT_EQ(refusal({}, {"x", "x/m"}), "") << "only what is trained has states";
}

TEST(TensorNames, AreNoNamesOfStates) {
  EXPECT_EQ(refusal({"x/m", "x"}),
            "the tensor x/m of the model has the name of the parameter x with a slash behind it, "
            "so two pieces of a saved state may get one name, allowed: another name for one of "
            "them");
  EXPECT_TRUE(contains(refusal({"x"}, {"x/anchor"}), "the parameter x with a slash"));
  EXPECT_TRUE(contains(refusal({"a/b", "a/b/v"}), "the parameter a/b with a slash"));
}

TEST(TensorNames, DoNotBeginAsOtherPieces) {
  EXPECT_TRUE(contains(refusal({"run/steps"}), "begins with run/"));
  EXPECT_TRUE(contains(refusal({"x"}, {"ema/x"}), "begins with ema/"));
}

TEST(TensorNames, ComeOnce) {
  EXPECT_TRUE(contains(refusal({"x", "x"}), "the tensor x of the model comes twice"));
  EXPECT_TRUE(contains(refusal({"x"}, {"x"}), "comes twice"));
}

}  // namespace
}  // namespace gossamer
