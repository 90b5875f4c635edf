#include "base/file_limit.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <system_error>

#include <sys/resource.h>

#include "base/text.hpp"

namespace gossamer {
namespace {

/// Some programs close all numbers up to the limit when they start.
constexpr rlim_t kMostFiles = rlim_t{1} << 20U;

rlimit file_limit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit;
}

}  // namespace

std::int64_t raise_file_limit() {
  rlimit limit = file_limit();
  const rlim_t most = std::min(limit.rlim_max, kMostFiles);
  if (limit.rlim_cur < most) {
    limit.rlim_cur = most;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  return static_cast<std::int64_t>(std::min(file_limit().rlim_cur, kMostFiles));
}

std::int64_t num_open_files() {
  std::error_code unknown;
  const std::filesystem::directory_iterator open("/proc/self/fd", unknown);
  // The look itself opens one.
  return unknown ? 0 : std::distance(open, std::filesystem::directory_iterator()) - 1;
}

std::string file_limit_hint(int error) {
  if (error == ENFILE) {
    return " (the system has no more files and connections; sysctl fs.file-max raises that)";
  }
  if (error != EMFILE) return "";
  const rlimit limit = file_limit();
  return concat(" (this process may have ", limit.rlim_cur,
                " files and connections open; ulimit -n raises that, up to ", limit.rlim_max, ")");
}

}  // namespace gossamer
