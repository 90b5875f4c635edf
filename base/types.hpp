#pragma once
// The vocabulary of every layer: World (which rank this is), Placement (where the rank runs),
// Device (where memory lies) and Block (a typed span of memory). All are small values; none owns
// anything.

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/bfloat16.hpp"

namespace gossamer {

/// Where a rank runs. Threads and GPUs of a host are shared out by this.
struct Placement {
  /// This rank's place among the ranks of its host, in the order of ranks. The ranks of a host may
  /// stand anywhere in the world.
  int local_rank = 0;
  /// Ranks on this rank's host; other hosts may have more or fewer.
  int local_world_size = 1;
  friend bool operator==(const Placement&, const Placement&) = default;
};

/// One rank's place among all ranks.
struct World {
  int rank = 0;
  int size = 1;
  /// Ranks that a topology takes as one node. Divides `size`; node i is made of the ranks
  /// i * node_size and up. Need not be what shares a host.
  int node_size = 1;
  Placement placement = {};
};

/// The World of `rank` where all ranks share one host, as threads do. `node_size` divides `size`.
inline World world_of(int rank, int size, int node_size) {
  return {rank, size, node_size, {.local_rank = rank, .local_world_size = size}};
}

/// Types of elements.
enum class DType : std::uint8_t { kFloat32, kFloat64, kBFloat16, kInt64, kUInt8 };

/// Bytes of one element.
constexpr std::int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 4;
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kBFloat16:
      return 2;
    case DType::kUInt8:
      return 1;
  }
  return 0;
}

/// The type in which parameters are kept, mixed and exchanged when the model computes in `model`:
/// float32 for bfloat16, otherwise `model` itself.
constexpr DType master_of(DType model) {
  return model == DType::kBFloat16 ? DType::kFloat32 : model;
}

constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kFloat64:
      return "float64";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kInt64:
      return "int64";
    case DType::kUInt8:
      return "uint8";
  }
  return "unknown";
}

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType kValue = DType::kFloat32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType kValue = DType::kFloat64;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType kValue = DType::kBFloat16;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType kValue = DType::kInt64;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType kValue = DType::kUInt8;
};

enum class DeviceType : std::uint8_t { kCpu, kCuda };

/// A device; `index` counts the GPUs that this process sees, from 0.
struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

inline std::string to_string(Device device) {
  return device.type == DeviceType::kCpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

/// A typed span that may be written. Does not own its memory; copying it copies the view.
struct Block {
  void* data = nullptr;
  std::int64_t numel = 0;
  DType dtype = DType::kFloat32;
  Device device = {};

  [[nodiscard]] std::int64_t bytes() const { return numel * size_of(dtype); }

  /// The same memory as elements of T. Throws std::logic_error when T is not the block's dtype.
  template <class T>
  [[nodiscard]] std::span<T> as() const {
    if (DTypeOf<T>::kValue != dtype) throw std::logic_error("Block::as: wrong element type");
    return {static_cast<T*>(data), static_cast<std::size_t>(numel)};
  }
};

/// A typed span that is only read. Does not own its memory.
struct ConstBlock {
  const void* data = nullptr;
  std::int64_t numel = 0;
  DType dtype = DType::kFloat32;
  Device device = {};

  ConstBlock() = default;
  ConstBlock(const void* pointer, std::int64_t count, DType type, Device where = {})
      : data(pointer), numel(count), dtype(type), device(where) {}
  ConstBlock(
      const Block& block)  // NOLINT(google-explicit-constructor): a writable span is readable
      : data(block.data), numel(block.numel), dtype(block.dtype), device(block.device) {}

  [[nodiscard]] std::int64_t bytes() const { return numel * size_of(dtype); }

  /// The same memory as elements of T. Throws std::logic_error when T is not the block's dtype.
  template <class T>
  [[nodiscard]] std::span<const T> as() const {
    if (DTypeOf<T>::kValue != dtype) throw std::logic_error("ConstBlock::as: wrong element type");
    return {static_cast<const T*>(data), static_cast<std::size_t>(numel)};
  }
};

inline bool is_on_host(const ConstBlock& block) { return block.device.type == DeviceType::kCpu; }

/// The `numel` elements of a block from element `offset` on; on the block's device.
inline Block part_of(const Block& block, std::int64_t offset, std::int64_t numel) {
  return {static_cast<char*>(block.data) + offset * size_of(block.dtype), numel, block.dtype,
          block.device};
}

inline ConstBlock part_of(const ConstBlock& block, std::int64_t offset, std::int64_t numel) {
  return {static_cast<const char*>(block.data) + offset * size_of(block.dtype), numel, block.dtype,
          block.device};
}

/// A block over existing elements.
template <class T>
Block block_of(std::span<T> elements) {
  return {elements.data(), static_cast<std::int64_t>(elements.size()), DTypeOf<T>::kValue, {}};
}

}  // namespace gossamer
