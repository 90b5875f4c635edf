#pragma once
// One value for each bucket of an algorithm.

#include <cstddef>
#include <utility>
#include <vector>

#include "core/bucket/bucket.hpp"

namespace gossamer {

template <class T>
class PerBucket {
 public:
  /// Adds the value of the next bucket, in bucket order.
  void add(T value) { values_.push_back(std::move(value)); }
  T& operator[](const Bucket& bucket) { return values_[static_cast<std::size_t>(bucket.index())]; }
  auto begin() { return values_.begin(); }
  auto end() { return values_.end(); }

 private:
  std::vector<T> values_;
};

}  // namespace gossamer
