#pragma once

#include <algorithm>
#include <vector>

namespace gossamer {

/// Orders the items and leaves one of each.
template <class T>
void sort_unique(std::vector<T>& items) {
  std::ranges::sort(items);
  const auto again = std::ranges::unique(items);
  items.erase(again.begin(), again.end());
}

}  // namespace gossamer
