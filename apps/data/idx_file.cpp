#include "apps/data/idx_file.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

constexpr std::int64_t kMagicBytes = 4;
constexpr std::int64_t kDimensionBytes = 4;
constexpr std::uint8_t kUnsignedByte = 0x08;
/// Limits far beyond any real file: a header that exceeds them is damaged.
constexpr std::int64_t kMaxItems = 1'000'000'000;
constexpr std::int64_t kMaxSide = 16'384;
static_assert(kMaxItems <= std::numeric_limits<std::int64_t>::max() / kMaxSide / kMaxSide,
              "the number of bytes of an allowed file must fit into 64 bits");
constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;

std::string_view kind_of(std::int64_t dimensions) {
  return dimensions == 1 ? "a labels file" : "an images file";
}

}  // namespace

IdxFile::IdxFile(const std::filesystem::path& path, std::int64_t dimensions) : file_(path) {
  read_header(dimensions);
}

void IdxFile::read_header(std::int64_t dimensions) {
  const std::int64_t header_bytes = kMagicBytes + kDimensionBytes * dimensions;
  std::vector<std::uint8_t> header(static_cast<std::size_t>(header_bytes));
  const std::int64_t got = file_.read(header);
  // Check the type before the length: a file of another kind may be shorter than the header.
  check_type(std::span(header).first(static_cast<std::size_t>(std::min(got, kMagicBytes))),
             dimensions);
  if (got < header_bytes) {
    file_.fail(got, concat("the file ends inside its header of ", header_bytes,
                           " bytes; it is incomplete, fetch it again"));
  }
  for (std::int64_t i = 0; i < dimensions; ++i) {
    const std::int64_t offset = kMagicBytes + kDimensionBytes * i;
    std::int64_t size = 0;
    for (const std::uint8_t byte :
         std::span(header).subspan(static_cast<std::size_t>(offset), kDimensionBytes)) {
      size = size << 8 | byte;
    }
    const std::int64_t limit = i == 0 ? kMaxItems : kMaxSide;
    if (size < 1 || size > limit) {
      file_.fail(offset, concat("the header says that dimension ", i + 1, " has ", size,
                                " elements, allowed: 1 to ", limit, "; the file is damaged"));
    }
    shape_.push_back(size);
    if (i > 0) item_bytes_ *= size;
  }
  items_left_ = items();
}

void IdxFile::check_type(std::span<const std::uint8_t> magic, std::int64_t dimensions) const {
  for (std::size_t i = 0; i < magic.size(); ++i) {
    const int byte = magic[i];
    const auto offset = static_cast<std::int64_t>(i);
    if (i < 2 && byte != 0) {
      file_.fail(offset, concat("is ", byte, " where an IDX file has 0; this is no IDX file"));
    }
    if (i == 2 && byte != kUnsignedByte) {
      file_.fail(offset, concat("the element type is ", byte, ", allowed: ", int{kUnsignedByte},
                                " (unsigned bytes)"));
    }
    if (i == 3 && byte != dimensions) {
      file_.fail(offset, concat("the file has ", byte, byte == 1 ? " dimension, " : " dimensions, ",
                                kind_of(dimensions), " has ", dimensions,
                                "; are images and labels mixed up?"));
    }
  }
}

std::int64_t IdxFile::take(std::int64_t count) {
  if (count < 0 || count > items_left_) {
    throw std::logic_error("IdxFile: more items asked for than the file has");
  }
  items_left_ -= count;
  return count * item_bytes_;
}

void IdxFile::fill(std::span<std::uint8_t> out) {
  if (file_.read(out) == static_cast<std::int64_t>(out.size())) return;
  const std::int64_t expected = kMagicBytes +
                                kDimensionBytes * static_cast<std::int64_t>(shape_.size()) +
                                items() * item_bytes_;
  file_.fail(file_.offset(),
             concat("the file ends here, but by its header (", join(shape_, " x "), ") it has ",
                    expected, " bytes; it is incomplete, fetch it again"));
}

void IdxFile::append(std::int64_t count, std::vector<std::uint8_t>& out) {
  for (std::int64_t left = take(count); left > 0;) {
    const std::int64_t chunk = std::min(left, kChunkBytes);
    out.resize(out.size() + static_cast<std::size_t>(chunk));
    fill(std::span(out).last(static_cast<std::size_t>(chunk)));
    left -= chunk;
  }
}

void IdxFile::skip(std::int64_t count) {
  std::vector<std::uint8_t> scratch;
  for (std::int64_t left = take(count); left > 0;) {
    const std::int64_t chunk = std::min(left, kChunkBytes);
    scratch.resize(static_cast<std::size_t>(chunk));
    fill(scratch);
    left -= chunk;
  }
}

void IdxFile::finish() {
  if (items_left_ != 0) throw std::logic_error("IdxFile::finish: items are left in the file");
  const std::int64_t end = file_.offset();
  std::array<std::uint8_t, 1> byte{};
  if (file_.read(byte) == 0) return;
  file_.fail(end, concat("more bytes follow where the file should end by its header (",
                         join(shape_, " x "), "); the file is damaged"));
}

}  // namespace gossamer::apps
