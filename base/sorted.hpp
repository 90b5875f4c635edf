#pragma once
// Sorting without duplicates.

#include <algorithm>
#include <vector>

namespace gossamer {

/// Sorts `items` in place and removes duplicates.
template <class T>
void sort_unique(std::vector<T>& items) {
  std::ranges::sort(items);
  const auto again = std::ranges::unique(items);
  items.erase(again.begin(), again.end());
}

}  // namespace gossamer
