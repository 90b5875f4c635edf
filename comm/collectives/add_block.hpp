#pragma once
// Adds blocks in host memory, element by element.

#include "base/types.hpp"

namespace gossamer {

/// sum += term. Both have the same size and type: float32, float64 or int64. Throws
/// std::logic_error for other types.
void add_block(const Block& sum, const ConstBlock& term);

/// Copies a block to one of the same size and type, which may be the same one.
void copy_block(const ConstBlock& from, const Block& to);

/// sum = term(0) + term(1) + ..., `num_terms` > 0 of them, added in this order. Of the terms, only
/// the first may be `sum` itself.
template <class Term>
void sum_in_order(const Block& sum, int num_terms, const Term& term) {
  copy_block(term(0), sum);
  for (int i = 1; i < num_terms; ++i) add_block(sum, term(i));
}

}  // namespace gossamer
