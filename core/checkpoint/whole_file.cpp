#include "core/checkpoint/whole_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

constexpr std::string_view kPartial = ".partial-";

/// Opens what has to stay where it is: a device, a pipe, or the file of a standard stream of the
/// process. For example /dev/stdout is a link that must not be replaced. Nothing: `path` is none of
/// these; -1: it cannot be opened.
std::optional<int> open_in_place(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0 || S_ISDIR(info.st_mode)) return std::nullopt;
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat other {};
    const bool is_same =
        fstat(stream, &other) == 0 && other.st_dev == info.st_dev && other.st_ino == info.st_ino;
    // The copy keeps the place at which the stream goes on.
    if (is_same) return fcntl(stream, F_DUPFD_CLOEXEC, 0);
  }
  if (S_ISREG(info.st_mode)) return std::nullopt;
  return open(path.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC);
}

}  // namespace

void sync_folder(const std::string& folder) {
  const int file = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;
  fsync(file);
  close(file);
}

bool is_partial_name(std::string_view name) {
  const std::size_t at = name.rfind(kPartial);
  return at != name.npos && at > 0 &&
         name.find_first_not_of("0123456789-", at + kPartial.size()) == name.npos;
}

WholeFile::WholeFile(std::string path) : path_(std::move(path)) {
  if (const std::optional<int> in_place = open_in_place(path_)) {
    file_ = *in_place;
  } else {
    // O_EXCL: neither another's file nor what a link leads to is written. The number of the process
    // may be in use on another host.
    int number = 0;
    do {
      partial_ = concat(path_, kPartial, getpid(), "-", number++);
      file_ = open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (file_ < 0 && errno == EEXIST);
  }
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
  if (partial_.empty()) return;
  if (std::rename(partial_.c_str(), path_.c_str()) != 0) fail(errno);
  partial_.clear();
  if (sync) sync_folder(std::filesystem::path(path_).parent_path().string());
}

void WholeFile::fail(int error) const {
  throw CheckpointError(
      concat(path_, " cannot be written: ", std::generic_category().message(error)));
}

TemporaryFile::TemporaryFile(std::string_view suffix)
    : path_(concat(std::filesystem::temp_directory_path().string(), "/gossamer_XXXXXX", suffix)) {
  const int file = mkstemps(path_.data(), static_cast<int>(suffix.size()));
  if (file < 0) {
    throw CheckpointError(
        concat(path_, " cannot be made: ", std::generic_category().message(errno)));
  }
  close(file);
}

TemporaryFile::~TemporaryFile() { std::remove(path_.c_str()); }

void copy_whole_file(const OpenFile& from, const std::string& to) {
  WholeFile file(to);
  std::vector<char> part(std::size_t{1} << 20U);
  for (std::int64_t at = 0; at < from.num_bytes();) {
    const std::int64_t count = std::min(std::ssize(part), from.num_bytes() - at);
    from.read(part.data(), at, count);
    file.write(part.data(), static_cast<std::size_t>(count));
    at += count;
  }
  file.keep(/*sync=*/true);
}

void write_whole_file(const std::string& path, std::string_view text, bool sync) {
  WholeFile file(path);
  file.write(text.data(), text.size());
  file.keep(sync);
}

}  // namespace gossamer
