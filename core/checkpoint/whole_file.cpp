#include "core/checkpoint/whole_file.hpp"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {

void sync_folder(const std::string& folder) {
  const int file = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;
  fsync(file);
  close(file);
}

WholeFile::WholeFile(std::string path)
    : path_(std::move(path)),
      partial_(path_ + ".partial"),
      file_(open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (file_ < 0) fail(errno);
}

WholeFile::~WholeFile() {
  if (file_ >= 0) close(file_);
  if (!partial_.empty()) std::remove(partial_.c_str());
}

void WholeFile::write(const void* bytes, std::size_t count) {
  const auto* next = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t written = ::write(file_, next, count);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(errno);
    next += written;
    count -= static_cast<std::size_t>(written);
  }
}

void WholeFile::keep(bool sync) {
  // EINVAL: what has no disk behind it, a pipe for example.
  if (sync && fsync(file_) != 0 && errno != EINVAL) fail(errno);
  if (close(std::exchange(file_, -1)) != 0) fail(errno);
  if (std::rename(partial_.c_str(), path_.c_str()) != 0) fail(errno);
  partial_.clear();
  if (sync) sync_folder(std::filesystem::path(path_).parent_path().string());
}

void WholeFile::fail(int error) const {
  throw CheckpointError(
      concat(path_, " cannot be written: ", std::generic_category().message(error)));
}

void write_whole_file(const std::string& path, std::string_view text, bool sync) {
  WholeFile file(path);
  file.write(text.data(), text.size());
  file.keep(sync);
}

}  // namespace gossamer
