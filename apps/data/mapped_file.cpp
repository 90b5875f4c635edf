#include "apps/data/mapped_file.hpp"

#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat about {};
  const bool good = file >= 0 && ::fstat(file, &about) == 0 && S_ISREG(about.st_mode);
  void* memory = nullptr;
  // An empty file cannot be mapped.
  if (good && about.st_size > 0) {
    memory =
        ::mmap(nullptr, static_cast<std::size_t>(about.st_size), PROT_READ, MAP_SHARED, file, 0);
  }
  const int reason = errno;
  // The mapping stays without the descriptor.
  if (file >= 0) ::close(file);
  if (file < 0 || memory == MAP_FAILED) {
    throw DataError(
        concat(path_, ": cannot be opened as a file: ", std::generic_category().message(reason)));
  }
  if (!good) throw DataError(concat(path_, ": cannot be opened as a file: it is no regular file"));
  bytes_ = {static_cast<const std::uint8_t*>(memory), static_cast<std::size_t>(about.st_size)};
}

MappedFile::~MappedFile() {
  if (bytes_.empty()) return;
  // munmap takes no pointer to const.
  ::munmap(const_cast<std::uint8_t*>(bytes_.data()), bytes_.size());
}

}  // namespace gossamer::apps
