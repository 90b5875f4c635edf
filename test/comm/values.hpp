#pragma once
// What the conformance suite sends around, where a communicator reaches it.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "base/buffer.hpp"
#include "comm/communicator.hpp"

namespace gossamer {

/// What `rank` sends: different for every rank, place and `salt`, exact in every type.
template <class T>
T value_of(int rank, std::int64_t i, int salt) {
  const std::int64_t value = (rank * 31 + i * 7 + salt * 13) % 101;
  if constexpr (std::is_same_v<T, BFloat16>) {
    return rounded_to_bfloat16(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

template <class T>
std::vector<T> values_of(int rank, std::int64_t numel, int salt = 0) {
  std::vector<T> values(static_cast<std::size_t>(numel));
  for (std::int64_t i = 0; i < numel; ++i) {
    values[static_cast<std::size_t>(i)] = value_of<T>(rank, i, salt);
  }
  return values;
}

/// Elements where a communicator's blocks lie: on the device of its stream.
template <class T>
class Values {
 public:
  Values(Communicator& communicator, const std::vector<T>& values)
      : stream_(communicator.stream()),
        numel_(std::ssize(values)),
        memory_(stream_->allocate(numel_, DTypeOf<T>::kValue)) {
    const Buffer host = stream_->allocate_host(numel_, DTypeOf<T>::kValue);
    std::ranges::copy(values, host.block().template as<T>().begin());
    stream_->copy(memory_.block(), host.block());
    stream_->synchronize();
  }
  /// Zeros.
  Values(Communicator& communicator, std::size_t numel)
      : Values(communicator, std::vector<T>(numel)) {}

  [[nodiscard]] Block block() const { return memory_.block(); }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(numel_); }
  [[nodiscard]] const std::shared_ptr<void>& owner() const { return memory_.owner(); }
  [[nodiscard]] std::vector<T> read() const {
    const Buffer host = stream_->allocate_host(numel_, DTypeOf<T>::kValue);
    stream_->copy(host.block(), memory_.block());
    stream_->synchronize();
    const auto values = host.block().template as<T>();
    return {values.begin(), values.end()};
  }
  friend bool operator==(const Values& a, const std::vector<T>& b) { return a.read() == b; }

 private:
  std::shared_ptr<Stream> stream_;
  std::int64_t numel_;
  Buffer memory_;
};

}  // namespace gossamer
