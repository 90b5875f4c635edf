#include <array>
#include <stdexcept>
#include <type_traits>

#include "optim/sweep.hpp"

namespace gossamer {
namespace {

/// T and G as in SweepLoop.
template <class T, class G>
struct MixOne {
  const ParameterUpdate& update;

  [[gnu::always_inline]] void operator()() const {
    constexpr bool kRounds = !std::is_same_v<T, G>;
    T* const p = static_cast<T*>(update.parameter.data);
    G* const rounded = kRounds ? static_cast<G*>(update.rounded.data) : nullptr;
    const T* const inbox = static_cast<const T*>(update.inboxes.front().block.data);
    const T keep = static_cast<T>(update.keep);
    const T take = static_cast<T>(update.inboxes.front().weight);
    const std::int64_t numel = update.parameter.numel;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < numel; ++i) {
      const T x = keep * p[i] + take * inbox[i];
      p[i] = x;
      if constexpr (kRounds) rounded[i] = rounded_to_bfloat16(x);
    }
  }
};

template <class T, class G>
struct MixMany {
  const ParameterUpdate& update;

  [[gnu::always_inline]] void operator()() const {
    constexpr bool kRounds = !std::is_same_v<T, G>;
    T* const p = static_cast<T*>(update.parameter.data);
    G* const rounded = kRounds ? static_cast<G*>(update.rounded.data) : nullptr;
    const std::int64_t numel = update.parameter.numel;
    std::array<T, internal::kMostInBlock> mixed;
    constexpr std::int64_t kBlock = internal::kPrefetchBytes / std::int64_t{sizeof(T)};
    for (std::int64_t first = 0; first < numel; first += kBlock) {
      const std::int64_t last = first + kBlock < numel ? first + kBlock : numel;
      internal::mix_block(update, first, last, mixed.data());
#pragma GCC ivdep
      for (std::int64_t i = first; i < last; ++i) {
        const T x = mixed[static_cast<std::size_t>(i - first)];
        p[i] = x;
        if constexpr (kRounds) rounded[i] = rounded_to_bfloat16(x);
      }
    }
  }
};

template <class T, class G = T>
void mix_typed(const ParameterUpdate& update) {
  if (update.inboxes.size() == 1) return run_on(update.simd, MixOne<T, G>{update});
  run_on(update.simd, MixMany<T, G>{update});
}

}  // namespace

void mix(const ParameterUpdate& update) {
  // Without inboxes the parameter stays as it is, and so does its rounded copy.
  if (update.inboxes.empty()) return;
  switch (update.parameter.dtype) {
    case DType::kFloat32:
      if (update.rounded.data != nullptr) return mix_typed<float, BFloat16>(update);
      return mix_typed<float>(update);
    case DType::kFloat64:
      return mix_typed<double>(update);
    case DType::kBFloat16:
    case DType::kInt64:
    case DType::kUInt8:
      break;
  }
  throw std::logic_error("mix: parameters must be float32 or float64");
}

void mix(const Block& x, double keep, std::span<const Inbox> inboxes, SimdPath simd) {
  mix({.parameter = x, .keep = keep, .inboxes = inboxes, .simd = simd});
}

}  // namespace gossamer
