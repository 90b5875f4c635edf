#include "comm/start/secret.hpp"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/file_descriptor.hpp"
#include "base/text.hpp"
#include "comm/hmac.hpp"

namespace gossamer {
namespace {

constexpr int kNumBytes = 32;
constexpr std::size_t kLeastLength = 16;
constexpr std::size_t kMostLength = 4096;

std::string reason() { return std::generic_category().message(errno); }

}  // namespace

std::string fresh_secret() { return to_hex(random_bytes(kNumBytes)); }

std::string read_secret_file(const std::string& path) {
  const std::string name = visible_line(path);
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status {};
  if (!file.is_open() || fstat(file.get(), &status) != 0) {
    throw ConfigError(concat(name, " cannot be read: ", reason(),
                             ", allowed: a file that gossamer secret -o FILE has written"));
  }
  if (!S_ISREG(status.st_mode)) throw ConfigError(concat(name, " is no file"));
  if (status.st_uid != geteuid()) {
    throw ConfigError(concat(name, " belongs to another user, allowed: a file of your own"));
  }
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    throw ConfigError(concat("others may read or write ", name, "; type: chmod 600 ", name));
  }
  std::string text(kMostLength + 1, '\0');
  const ssize_t count = read(file.get(), text.data(), text.size());
  if (count < 0) throw ConfigError(concat(name, " cannot be read: ", reason()));
  if (static_cast<std::size_t>(count) > kMostLength) {
    throw ConfigError(concat(name, " is longer than a secret, allowed: ", kMostLength, " bytes"));
  }
  text.resize(static_cast<std::size_t>(count));
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  try {
    check_secret(text);
  } catch (const ConfigError& error) {
    throw ConfigError(concat(name, " ", error.what()));
  }
  return text;
}

void write_secret_file(const std::string& path, const std::string& secret) {
  const std::string name = visible_line(path);
  const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.is_open()) {
    throw ConfigError("command line", "-o",
                      errno == EEXIST
                          ? concat(name,
                                   " exists, and runs may need the secret in it, allowed: "
                                   "a new file")
                          : concat(name, " cannot be written: ", reason()));
  }
  const std::string line = secret + "\n";
  if (write(file.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    const std::string why = reason();
    unlink(path.c_str());
    throw ConfigError("command line", "-o", concat(name, " cannot be written: ", why));
  }
}

void check_secret(const std::string& secret) {
  if (secret.size() >= kLeastLength) return;
  throw ConfigError(concat("has ", secret.size(), " characters, and others may guess it, allowed: ",
                           kLeastLength, " or more; gossamer secret makes one"));
}

}  // namespace gossamer
