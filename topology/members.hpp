#pragma once
// The ranks of an edge. A round of a million ranks has half a million pairs, so one or two ranks
// stand in the object itself, and only larger groups take memory of their own.

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <vector>

namespace gossamer {

/// A list of ranks of fixed length. An object that has been moved from may only be assigned to or
/// destroyed.
class Members {
 public:
  // The standard's names, for ranges and for nlohmann::json.
  // NOLINTBEGIN(readability-identifier-naming)
  using value_type = int;
  using iterator = int*;
  using const_iterator = const int*;
  // NOLINTEND(readability-identifier-naming)

  Members() = default;
  // NOLINTBEGIN(google-explicit-constructor): a list of ranks, however it is written
  Members(std::initializer_list<int> ranks) : Members(ranks.begin(), ranks.size()) {}
  Members(const std::vector<int>& ranks) : Members(ranks.data(), ranks.size()) {}
  operator std::vector<int>() const { return {begin(), end()}; }
  // NOLINTEND(google-explicit-constructor)
  Members(const Members& other) : Members(other.begin(), other.size()) {}
  Members(Members&&) noexcept = default;
  Members& operator=(const Members& other) { return *this = Members(other); }
  Members& operator=(Members&&) noexcept = default;
  ~Members() = default;

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] int* begin() { return many_ ? many_.get() : few_.data(); }
  [[nodiscard]] int* end() { return begin() + size_; }
  [[nodiscard]] const int* begin() const { return many_ ? many_.get() : few_.data(); }
  [[nodiscard]] const int* end() const { return begin() + size_; }
  [[nodiscard]] int front() const { return *begin(); }
  [[nodiscard]] int operator[](std::size_t place) const { return begin()[place]; }

  friend bool operator==(const Members& a, const Members& b) { return std::ranges::equal(a, b); }
  friend std::strong_ordering operator<=>(const Members& a, const Members& b) {
    return std::lexicographical_compare_three_way(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  static constexpr std::size_t kFew = 2;

  Members(const int* ranks, std::size_t size) : size_(size) {
    if (size > kFew) many_ = std::make_unique_for_overwrite<int[]>(size);  // NOLINT(*-c-arrays)
    std::copy_n(ranks, size, begin());
  }

  std::array<int, kFew> few_ = {};
  std::unique_ptr<int[]> many_;  // NOLINT(*-c-arrays): a vector would double the size of an edge
  std::size_t size_ = 0;
};

}  // namespace gossamer
