#pragma once
// Where a StateLoader reads tensors from: a file (safetensors.hpp), or memory.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gossamer {

/// A tensor of a source.
struct TensorEntry {
  std::string name = {};
  /// The type of the elements, as the safetensors format spells it: F32, F64, BF16, F16, I64, U8,
  /// BOOL, ...
  std::string dtype = {};
  std::vector<std::int64_t> shape = {};
  /// Place of the values, in bytes; in a file from the end of the header on.
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] std::int64_t num_bytes() const { return end - begin; }
};

/// A tensor in memory. The values are contiguous and in row-major order.
struct TensorView {
  std::string name = {};
  std::string dtype = {};
  std::vector<std::int64_t> shape = {};
  const void* data = nullptr;
  std::int64_t num_bytes = 0;
};

/// Thread safety: any thread may read.
class TensorSource {
 public:
  TensorSource() = default;
  TensorSource(const TensorSource&) = delete;
  TensorSource& operator=(const TensorSource&) = delete;
  virtual ~TensorSource() = default;

  /// The name of the source in messages, as the path of a file.
  [[nodiscard]] virtual const std::string& title() const = 0;
  /// The tensors in the order of their values.
  [[nodiscard]] virtual std::span<const TensorEntry> tensors() const = 0;
  /// The tensor of this name; null if there is none.
  [[nodiscard]] virtual const TensorEntry* find(std::string_view name) const = 0;
  /// Copies the values of a tensor; `to` has room for num_bytes().
  virtual void read(const TensorEntry& tensor, void* to) const = 0;
};

/// Tensors in memory that the caller keeps while they are read.
class TensorsInMemory : public TensorSource {
 public:
  /// Throws CheckpointError for two tensors of one name.
  TensorsInMemory(std::string title, std::span<const TensorView> tensors);

  [[nodiscard]] const std::string& title() const override { return title_; }
  [[nodiscard]] std::span<const TensorEntry> tensors() const override { return entries_; }
  [[nodiscard]] const TensorEntry* find(std::string_view name) const override;
  void read(const TensorEntry& tensor, void* to) const override;

 private:
  std::string title_;
  std::vector<TensorEntry> entries_;
  std::vector<const void*> data_;
  std::map<std::string, std::size_t, std::less<>> places_;
};

}  // namespace gossamer
