#include "core/checkpoint/state_file.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

std::string_view dtype_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "F32";
    case DType::kFloat64:
      return "F64";
    case DType::kBFloat16:
      return "BF16";
    case DType::kInt64:
      return "I64";
    case DType::kUInt8:
      return "U8";
  }
  return "";
}

bool begins_with_one_of(const std::string& name, std::span<const std::string_view> beginnings) {
  return std::ranges::any_of(beginnings,
                             [&name](std::string_view begin) { return name.starts_with(begin); });
}

}  // namespace

void StateSnapshot::add(const std::string& name, std::string_view dtype,
                        std::vector<std::int64_t> shape, const void* data, std::int64_t num_bytes) {
  if (num_pieces_ == pieces_.size()) pieces_.emplace_back();
  Piece& piece = pieces_[num_pieces_++];
  if (piece.capacity < num_bytes) {
    piece.bytes = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(num_bytes));
    piece.capacity = num_bytes;
  }
  piece.name = name;
  piece.dtype = dtype;
  piece.shape = std::move(shape);
  piece.num_bytes = num_bytes;
  if (num_bytes > 0) std::memcpy(piece.bytes.get(), data, static_cast<std::size_t>(num_bytes));
}

void StateSnapshot::block(const std::string& name, const Block& block) {
  add(name, dtype_of(block.dtype), {block.numel}, block.data, block.bytes());
}

void StateSnapshot::number(const std::string& name, double& value) {
  add(name, "F64", {}, &value, sizeof value);
}

void StateSnapshot::number(const std::string& name, std::int64_t& value) {
  add(name, "I64", {}, &value, sizeof value);
}

std::int64_t StateSnapshot::num_bytes() const {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < num_pieces_; ++i) sum += pieces_[i].num_bytes;
  return sum;
}

std::vector<TensorView> StateSnapshot::tensors() const {
  std::vector<TensorView> tensors;
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < num_pieces_; ++i) {
    const Piece& piece = pieces_[i];
    if (!names.insert(piece.name).second) {
      throw CheckpointError(concat("two pieces of the state have the name ", piece.name,
                                   "; rename a parameter or a buffer of the model"));
    }
    tensors.push_back({.name = piece.name,
                       .dtype = piece.dtype,
                       .shape = piece.shape,
                       .data = piece.bytes.get(),
                       .num_bytes = piece.num_bytes});
  }
  return tensors;
}

FileDigest StateSnapshot::write(const std::string& path,
                                const std::map<std::string, std::string>& metadata) const {
  return write_safetensors(path, tensors(), metadata);
}

void StateLoader::read(const std::string& name, std::string_view dtype, std::size_t num_dimensions,
                       std::int64_t num_bytes, void* to) {
  const TensorEntry* tensor = source_.find(name);
  if (tensor == nullptr && begins_with_one_of(name, may_lack_)) return;
  if (tensor == nullptr) {
    throw CheckpointError(concat(source_.title(), " has no ", name,
                                 "; the model, the algorithm or the optimizer is another one than "
                                 "at saving"));
  }
  if (tensor->dtype != dtype || tensor->shape.size() != num_dimensions ||
      tensor->num_bytes() != num_bytes) {
    throw CheckpointError(concat(source_.title(), ": ", name, " has ", tensor->num_bytes(),
                                 " bytes of ", tensor->dtype, ", and this run needs ", num_bytes,
                                 " bytes of ", dtype));
  }
  source_.read(*tensor, to);
  loaded_.insert(name);
}

void StateLoader::block(const std::string& name, const Block& block) {
  read(name, dtype_of(block.dtype), 1, block.bytes(), block.data);
}

void StateLoader::number(const std::string& name, double& value) {
  read(name, "F64", 0, sizeof value, &value);
}

void StateLoader::number(const std::string& name, std::int64_t& value) {
  read(name, "I64", 0, sizeof value, &value);
  // Counting on from larger numbers leaves the range of the type.
  constexpr std::int64_t kLargest = 1'000'000'000'000'000'000;
  if (value >= -kLargest && value <= kLargest) return;
  throw CheckpointError(
      concat(source_.title(), ": ", name, " is ", value, ", which no run can have saved"));
}

void StateLoader::check_all_loaded(std::span<const std::string_view> of_others) const {
  for (const TensorEntry& tensor : source_.tensors()) {
    if (loaded_.contains(tensor.name) || begins_with_one_of(tensor.name, of_others)) continue;
    throw CheckpointError(concat(source_.title(), " has ", tensor.name,
                                 ", which this run does not know; the model, the algorithm or the "
                                 "optimizer is another one than at saving"));
  }
}

}  // namespace gossamer
