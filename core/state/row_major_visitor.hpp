#pragma once
// Shows another visitor the values of parameters, and of their states, in row-major order, whatever
// order they have in memory. So a saved state does not depend on strides.
//
// Not thread safe.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/state_visitor.hpp"

namespace gossamer {

/// Where the elements of a dense tensor lie. Elements, for each dimension.
struct MemoryLayout {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;

  [[nodiscard]] bool is_row_major() const;
};

/// Copies the elements of `from`, which are laid out so, to `to` in row-major order. The blocks
/// have the same type and as many elements as the layout, and do not overlap.
void to_row_major(const MemoryLayout& layout, const ConstBlock& from, const Block& to);
/// The other way round.
void from_row_major(const MemoryLayout& layout, const ConstBlock& from, const Block& to);

class RowMajorVisitor : public StateVisitor {
 public:
  /// `layouts`: by name, the parameters. `inner` must outlive the visitor.
  RowMajorVisitor(StateVisitor& inner, std::map<std::string, MemoryLayout> layouts);

  [[nodiscard]] bool loads() const override { return inner_.loads(); }
  [[nodiscard]] bool holds(const std::string& name) const override { return inner_.holds(name); }
  void number(const std::string& name, double& value) override { inner_.number(name, value); }
  void number(const std::string& name, std::int64_t& value) override { inner_.number(name, value); }
  /// `name`: the name of a parameter, or this name with a slash and the name of a state behind it.
  void block(const std::string& name, const Block& block) override;

 private:
  StateVisitor& inner_;
  /// The layouts of blocks that are not in row-major order, by name.
  std::map<std::string, MemoryLayout> layouts_;
};

}  // namespace gossamer
