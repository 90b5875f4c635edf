#pragma once
// A copy of the state of training in memory. The first visit saves. After load() the next visit
// loads the copy, perhaps into an owner with other buckets. Not thread safe.

#include <cstddef>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/state_visitor.hpp"
#include "base/text.hpp"

namespace gossamer {

class StateCopy : public StateVisitor {
 public:
  [[nodiscard]] bool loads() const override { return loads_; }
  [[nodiscard]] bool holds(const std::string& name) const override {
    return pieces_.contains(name);
  }
  /// Throws std::logic_error for a name that comes twice at saving, and for a piece of another size
  /// at loading.
  void block(const std::string& name, const Block& block) override {
    piece(name, block.data, static_cast<std::size_t>(block.bytes()));
  }
  void number(const std::string& name, double& value) override {
    piece(name, &value, sizeof value);
  }
  void number(const std::string& name, std::int64_t& value) override {
    piece(name, &value, sizeof value);
  }

  /// The visits from now on load.
  void load() { loads_ = true; }

 private:
  void piece(const std::string& name, void* data, std::size_t size) {
    auto* const bytes = static_cast<std::byte*>(data);
    if (!loads_) {
      if (pieces_.emplace(name, std::vector<std::byte>(bytes, bytes + size)).second) return;
      throw std::logic_error(concat("two pieces of the state have the name ", name));
    }
    const auto found = pieces_.find(name);
    if (found == pieces_.end() || found->second.size() != size) {
      throw std::logic_error(concat("the copy of the state does not fit at ", name));
    }
    if (size > 0) std::memcpy(data, found->second.data(), size);
  }

  bool loads_ = false;
  std::map<std::string, std::vector<std::byte>> pieces_;
};

}  // namespace gossamer
