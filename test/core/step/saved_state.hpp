#pragma once
// The state of training, saved in memory and loaded from there.

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/state_visitor.hpp"

namespace gossamer {

/// State saved in memory.
struct SavedState {
  std::map<std::string, std::vector<char>> blocks;
  std::map<std::string, double> reals;
  std::map<std::string, std::int64_t> integers;
};

class Saver : public StateVisitor {
 public:
  explicit Saver(SavedState& state) : state_(state) {}
  [[nodiscard]] bool loads() const override { return false; }
  [[nodiscard]] bool holds(const std::string& /*name*/) const override { return false; }
  void block(const std::string& name, const Block& block) override {
    const auto* const bytes = static_cast<const char*>(block.data);
    EXPECT_TRUE(state_.blocks.emplace(name, std::vector(bytes, bytes + block.bytes())).second)
        << name << " comes twice";
  }
  void number(const std::string& name, double& value) override {
    EXPECT_TRUE(state_.reals.emplace(name, value).second) << name << " comes twice";
  }
  void number(const std::string& name, std::int64_t& value) override {
    EXPECT_TRUE(state_.integers.emplace(name, value).second) << name << " comes twice";
  }

 private:
  SavedState& state_;
};

class Loader : public StateVisitor {
 public:
  explicit Loader(const SavedState& state) : state_(state) {}
  [[nodiscard]] bool loads() const override { return true; }
  [[nodiscard]] bool holds(const std::string& name) const override {
    return state_.integers.contains(name) || state_.reals.contains(name) ||
           state_.blocks.contains(name);
  }
  void block(const std::string& name, const Block& block) override {
    const std::vector<char>& saved = state_.blocks.at(name);
    ASSERT_EQ(static_cast<std::int64_t>(saved.size()), block.bytes()) << name;
    if (!saved.empty()) std::memcpy(block.data, saved.data(), saved.size());
    ++num_blocks;
  }
  void number(const std::string& name, double& value) override { value = state_.reals.at(name); }
  void number(const std::string& name, std::int64_t& value) override {
    value = state_.integers.at(name);
  }
  std::size_t num_blocks = 0;

 private:
  const SavedState& state_;
};

template <class Visited>
SavedState saved(Visited& visited) {
  SavedState state;
  Saver saver(state);
  visited.visit(saver);
  return state;
}

/// The state must have the blocks of `visited` and no others.
template <class Visited>
void load(Visited& visited, const SavedState& state) {
  Loader loader(state);
  visited.visit(loader);
  EXPECT_EQ(loader.num_blocks, state.blocks.size());
}

}  // namespace gossamer
