#include "apps/data/packed_file.hpp"

#include <algorithm>
#include <limits>
#include <new>

#include <zlib.h>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{64} << 10U;
/// zlib's switch for gzip headers and trailers, added to the size of its window.
constexpr int kGzipWindow = 16 + MAX_WBITS;

}  // namespace

void PackedFile::EndInflate::operator()(z_stream_s* stream) const {
  inflateEnd(stream);
  delete stream;
}

PackedFile::PackedFile(const std::filesystem::path& path) : path_(path), buffer_(kBufferBytes) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    throw DataError(concat(path.string(),
                           ": there is no such file, or its folder may not be read; "
                           "check the path and its permissions"));
  }
  // A folder would fail later with an obscure message, and a pipe would block for ever.
  if (!std::filesystem::is_regular_file(status)) {
    throw DataError(concat(path.string(), ": is not a file; give the path of a file"));
  }
  file_.open(path, std::ios::binary);
  if (!file_) {
    throw DataError(concat(path.string(), ": cannot be opened; check its permissions"));
  }
  refill();
  if (waiting_.size() >= 2 && waiting_[0] == 0x1f && waiting_[1] == 0x8b) start_inflate();
}

void PackedFile::start_inflate() {
  auto stream = std::make_unique<z_stream>();
  if (inflateInit2(stream.get(), kGzipWindow) != Z_OK) throw std::bad_alloc();
  inflate_.reset(stream.release());
}

bool PackedFile::refill() {
  file_.read(reinterpret_cast<char*>(buffer_.data()), static_cast<std::streamsize>(buffer_.size()));
  if (file_.bad()) fail(offset_, "the file cannot be read any further; check the disk");
  waiting_ = std::span(buffer_).first(static_cast<std::size_t>(file_.gcount()));
  return !waiting_.empty();
}

std::int64_t PackedFile::read(std::span<std::uint8_t> out) {
  const auto count = static_cast<std::int64_t>(inflate_ ? read_gzip(out) : read_plain(out));
  offset_ += count;
  return count;
}

std::size_t PackedFile::read_plain(std::span<std::uint8_t> out) {
  std::size_t filled = 0;
  while (filled < out.size() && (!waiting_.empty() || refill())) {
    const std::size_t count = std::min(waiting_.size(), out.size() - filled);
    std::copy_n(waiting_.begin(), count, out.subspan(filled).begin());
    waiting_ = waiting_.subspan(count);
    filled += count;
  }
  return filled;
}

std::size_t PackedFile::read_gzip(std::span<std::uint8_t> out) {
  std::size_t filled = 0;
  while (filled < out.size()) {
    if (waiting_.empty() && !refill()) {
      if (between_members_) break;
      fail_gzip(offset_ + static_cast<std::int64_t>(filled), "the packed data ends too early");
    }
    if (between_members_ && waiting_[0] != 0x1f) {
      fail_gzip(offset_ + static_cast<std::int64_t>(filled), "other bytes follow the packed data");
    }
    // A gzip file may hold several members, one after the other. Their data is one sequence of
    // bytes.
    if (between_members_) inflateReset(inflate_.get());
    between_members_ = false;

    const std::size_t room =
        std::min<std::size_t>(out.size() - filled, std::numeric_limits<uInt>::max());
    inflate_->next_in = waiting_.data();
    inflate_->avail_in = static_cast<uInt>(waiting_.size());
    inflate_->next_out = out.data() + filled;
    inflate_->avail_out = static_cast<uInt>(room);
    const int result = inflate(inflate_.get(), Z_NO_FLUSH);
    waiting_ = waiting_.last(inflate_->avail_in);
    filled += room - inflate_->avail_out;
    if (result == Z_MEM_ERROR) throw std::bad_alloc();
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
      fail_gzip(offset_ + static_cast<std::int64_t>(filled),
                inflate_->msg == nullptr ? "the packed data is broken" : inflate_->msg);
    }
    between_members_ = result == Z_STREAM_END;
  }
  return filled;
}

void PackedFile::fail(std::int64_t offset, std::string_view what) const {
  throw DataError(concat(path_.string(), ": byte ", offset, inflate_ ? " of the unpacked data" : "",
                         ": ", what));
}

void PackedFile::fail_gzip(std::int64_t offset, std::string_view reason) const {
  fail(offset, concat("the gzip file is damaged (", reason, "); fetch it again"));
}

}  // namespace gossamer::apps
