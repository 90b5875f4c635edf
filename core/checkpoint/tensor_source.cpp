#include "core/checkpoint/tensor_source.hpp"

#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {

TensorsInMemory::TensorsInMemory(std::string title, std::span<const TensorView> tensors)
    : title_(std::move(title)) {
  std::int64_t begin = 0;
  for (const TensorView& tensor : tensors) {
    if (!places_.emplace(tensor.name, entries_.size()).second) {
      throw CheckpointError(concat(title_, ": ", tensor.name, " comes twice"));
    }
    entries_.push_back({.name = tensor.name,
                        .dtype = tensor.dtype,
                        .shape = tensor.shape,
                        .begin = begin,
                        .end = begin + tensor.num_bytes});
    data_.push_back(tensor.data);
    begin += tensor.num_bytes;
  }
}

const TensorEntry* TensorsInMemory::find(std::string_view name) const {
  const auto place = places_.find(name);
  return place == places_.end() ? nullptr : &entries_[place->second];
}

void TensorsInMemory::read(const TensorEntry& tensor, void* to) const {
  const auto size = static_cast<std::size_t>(tensor.num_bytes());
  if (size > 0) std::memcpy(to, data_[places_.find(tensor.name)->second], size);
}

}  // namespace gossamer
