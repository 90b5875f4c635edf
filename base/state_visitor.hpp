#pragma once
// A StateVisitor saves or loads the state of training. The owners of state call it once for each
// piece, by name, and in the same order for saving and for loading.
//
// Names are per parameter, so that saved state does not depend on bucket sizes:
//   fc.weight           the parameter; of a bfloat16 model, the float32 master copy
//   fc.weight/m         a state of the optimizer
//   fc.weight/tracker   a state of the algorithm
//   fc.weight/updates   a number
//   run/...             a number of the whole run
// Values of a parameter with several dimensions, and of its states, come in row-major order, which
// the number kRowMajorName (1) says in every saved state.
//
// Errors: a visitor that loads throws CheckpointError for a name that it does not have, and for a
// block of another size or type.

#include <cstdint>
#include <string>

#include "base/types.hpp"

namespace gossamer {

inline constexpr const char* kRowMajorName = "run/row_major";

class StateVisitor {
 public:
  virtual ~StateVisitor() = default;
  /// True: the visitor writes into the blocks and numbers. False: it reads them.
  [[nodiscard]] virtual bool loads() const = 0;
  /// Whether a visitor that loads has a piece of this name. The function is for pieces that depend
  /// on options that may change between saving and loading.
  [[nodiscard]] virtual bool holds(const std::string& name) const = 0;
  /// `block` is host memory and valid during the call only.
  virtual void block(const std::string& name, const Block& block) = 0;
  virtual void number(const std::string& name, double& value) = 0;
  virtual void number(const std::string& name, std::int64_t& value) = 0;
};

}  // namespace gossamer
