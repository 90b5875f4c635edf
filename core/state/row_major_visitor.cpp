#include "core/state/row_major_visitor.hpp"

#include <cstddef>
#include <cstring>
#include <utility>

#include "base/buffer.hpp"

namespace gossamer {
namespace {

/// Calls `visit(row_major, in_memory)` for the places of all elements, in row-major order.
template <class Visit>
void for_places(const MemoryLayout& layout, std::int64_t numel, const Visit& visit) {
  std::vector<std::int64_t> index(layout.shape.size());
  std::int64_t place = 0;
  for (std::int64_t row_major = 0; row_major < numel; ++row_major) {
    visit(row_major, place);
    for (std::size_t d = index.size(); d-- > 0;) {
      place += layout.strides[d];
      if (++index[d] < layout.shape[d]) break;
      place -= layout.strides[d] * layout.shape[d];
      index[d] = 0;
    }
  }
}

/// kBytes: of one element.
template <std::size_t kBytes>
void copy_sized(const MemoryLayout& layout, const ConstBlock& from, const Block& to, bool to_rows) {
  const auto* const source = static_cast<const std::byte*>(from.data);
  auto* const target = static_cast<std::byte*>(to.data);
  for_places(layout, from.numel, [&](std::int64_t row_major, std::int64_t place) {
    const auto read = static_cast<std::size_t>(to_rows ? place : row_major);
    const auto write = static_cast<std::size_t>(to_rows ? row_major : place);
    std::memcpy(target + write * kBytes, source + read * kBytes, kBytes);
  });
}

void copy(const MemoryLayout& layout, const ConstBlock& from, const Block& to, bool to_rows) {
  switch (size_of(from.dtype)) {
    case 1:
      return copy_sized<1>(layout, from, to, to_rows);
    case 2:
      return copy_sized<2>(layout, from, to, to_rows);
    case 4:
      return copy_sized<4>(layout, from, to, to_rows);
    default:
      return copy_sized<8>(layout, from, to, to_rows);
  }
}

std::int64_t numel_of(const MemoryLayout& layout) {
  std::int64_t numel = 1;
  for (const std::int64_t size : layout.shape) numel *= size;
  return numel;
}

}  // namespace

bool MemoryLayout::is_row_major() const {
  std::int64_t expected = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    // A tensor with one element in a direction, or none at all, takes no step there.
    if (shape[d] == 0) return true;
    if (shape[d] > 1 && strides[d] != expected) return false;
    expected *= shape[d];
  }
  return true;
}

void to_row_major(const MemoryLayout& layout, const ConstBlock& from, const Block& to) {
  copy(layout, from, to, true);
}

void from_row_major(const MemoryLayout& layout, const ConstBlock& from, const Block& to) {
  copy(layout, from, to, false);
}

RowMajorVisitor::RowMajorVisitor(StateVisitor& inner, std::map<std::string, MemoryLayout> layouts)
    : inner_(inner), layouts_(std::move(layouts)) {
  std::erase_if(layouts_, [](const auto& entry) { return entry.second.is_row_major(); });
}

void RowMajorVisitor::block(const std::string& name, const Block& block) {
  const auto found = layouts_.find(name.substr(0, name.find('/')));
  if (found == layouts_.end() || block.numel != numel_of(found->second)) {
    return inner_.block(name, block);
  }
  const Buffer rows(block.numel, block.dtype);
  if (!loads()) to_row_major(found->second, block, rows.block());
  inner_.block(name, rows.block());
  if (loads()) from_row_major(found->second, rows.block(), block);
}

}  // namespace gossamer
