#include <array>
#include <stdexcept>

#include "gossamer/optim/sweep.hpp"

namespace gossamer {
namespace {

template <class T>
struct MixOne {
  const ParameterUpdate& update;

  [[gnu::always_inline]] void operator()() const {
    T* const p = static_cast<T*>(update.parameter.data);
    const T* const inbox = static_cast<const T*>(update.inboxes.front().block.data);
    const T keep = static_cast<T>(update.keep);
    const T take = static_cast<T>(update.inboxes.front().weight);
    const std::int64_t numel = update.parameter.numel;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < numel; ++i) p[i] = keep * p[i] + take * inbox[i];
  }
};

template <class T>
struct MixMany {
  const ParameterUpdate& update;

  [[gnu::always_inline]] void operator()() const {
    T* const p = static_cast<T*>(update.parameter.data);
    const std::int64_t numel = update.parameter.numel;
    std::array<T, internal::kMostInBlock> mixed;
    constexpr std::int64_t kBlock = internal::kPrefetchBytes / std::int64_t{sizeof(T)};
    for (std::int64_t first = 0; first < numel; first += kBlock) {
      const std::int64_t last = first + kBlock < numel ? first + kBlock : numel;
      internal::mix_block(update, first, last, mixed.data());
#pragma GCC ivdep
      for (std::int64_t i = first; i < last; ++i) p[i] = mixed[static_cast<std::size_t>(i - first)];
    }
  }
};

template <class T>
void mix_typed(const ParameterUpdate& update) {
  if (update.inboxes.size() == 1) return run_on(update.simd, MixOne<T>{update});
  run_on(update.simd, MixMany<T>{update});
}

}  // namespace

void mix(const Block& x, double keep, std::span<const Inbox> inboxes, SimdPath simd) {
  if (inboxes.empty()) return;
  const ParameterUpdate update{.parameter = x, .keep = keep, .inboxes = inboxes, .simd = simd};
  switch (x.dtype) {
    case DType::kFloat32:
      return mix_typed<float>(update);
    case DType::kFloat64:
      return mix_typed<double>(update);
    case DType::kInt64:
    case DType::kUInt8:
      break;
  }
  throw std::logic_error("mix: parameters must be float32 or float64");
}

}  // namespace gossamer
