#include "comm/collectives/shared_memory.hpp"

#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/file_descriptor.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

class Await : public Operation {
 public:
  Await(std::vector<Awaited> awaited, std::function<void()> check, bool is_woken)
      : awaited_(std::move(awaited)), check_(std::move(check)), is_woken_(is_woken) {}

  void start() override {}
  bool test() override {
    check_();
    num_come_ += static_cast<std::int64_t>(
        std::erase_if(awaited_, [](const Awaited& counter) { return counter.has_come(); }));
    return awaited_.empty();
  }
  [[nodiscard]] Progress progress() const override { return {.num_events = num_come_}; }
  [[nodiscard]] bool is_woken() const override { return is_woken_; }
  [[nodiscard]] std::vector<int> waiting_for() const override {
    std::vector<int> late;
    for (const Awaited& counter : awaited_) late.push_back(counter.peer);
    return late;
  }

 private:
  std::vector<Awaited> awaited_;
  std::function<void()> check_;
  bool is_woken_;
  std::int64_t num_come_ = 0;
};

// Where a process finds another one's memory, and how it knows that it has found the right one.
struct Address {
  std::int64_t process = 0;
  std::int64_t fd = 0;
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::int64_t bytes = 0;
};

std::string to_text(const Address& address) {
  return concat(address.process, " ", address.fd, " ", address.device, " ", address.inode, " ",
                address.bytes);
}

/// The address in a text; null where the member has no memory to offer.
std::optional<Address> address_of(std::string_view text) {
  Address address;
  const char* place = text.data();
  const char* const end = place + text.size();
  const auto take = [&](auto& number) {
    if (place != end && *place == ' ') ++place;
    const auto [next, error] = std::from_chars(place, end, number);
    place = next;
    return error == std::errc{};
  };
  if (!take(address.process) || !take(address.fd)) return std::nullopt;
  if (!take(address.device) || !take(address.inode)) return std::nullopt;
  if (!take(address.bytes)) return std::nullopt;
  return address;
}

/// Maps all of a file. Returns an empty buffer where the system refuses.
Buffer map_file(const FileDescriptor& file, std::int64_t bytes, int protection) {
  const auto size = static_cast<std::size_t>(bytes);
  void* const data = mmap(nullptr, size, protection, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) return {};
  return {std::shared_ptr<void>(data, [size](void* place) { munmap(place, size); }),
          {data, bytes, DType::kUInt8, {}}};
}

bool is_file_of(const FileDescriptor& file, const Address& address) {
  struct stat found {};
  return file.is_open() && fstat(file.get(), &found) == 0 && found.st_dev == address.device &&
         found.st_ino == address.inode && found.st_size == address.bytes;
}

/// Another process's memory; empty where it cannot be reached, as from another container.
Buffer map_memory_of(const Address& address) {
  const std::string path = concat("/proc/", address.process, "/fd/", address.fd);
  // Not blocked by a pipe that stands there in place of the memory.
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  return is_file_of(file, address) ? map_file(file, address.bytes, PROT_READ) : Buffer();
}

/// A file in memory without a name, and this process's view of it.
struct OwnMemory {
  FileDescriptor file = FileDescriptor(-1);
  Buffer view = {};
  /// Empty: there is no such memory.
  std::string address = {};
};

/// Growing a file beyond the limit would end the process.
bool is_allowed(std::int64_t file_bytes) {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
         (limit.rlim_cur == RLIM_INFINITY || static_cast<rlim_t>(file_bytes) <= limit.rlim_cur);
}

OwnMemory make_memory(std::int64_t bytes) {
  if (!is_allowed(bytes)) return {};
  OwnMemory own{.file = FileDescriptor(memfd_create("gossamer", MFD_CLOEXEC))};
  struct stat made {};
  if (!own.file.is_open() || ftruncate(own.file.get(), bytes) != 0 ||
      fstat(own.file.get(), &made) != 0) {
    return own;
  }
  own.view = map_file(own.file, bytes, PROT_READ | PROT_WRITE);
  if (own.view.block().data != nullptr) {
    own.address = to_text({getpid(), own.file.get(), made.st_dev, made.st_ino, bytes});
  }
  return own;
}

}  // namespace

std::unique_ptr<Operation> make_await(std::vector<Awaited> awaited, std::function<void()> check,
                                      bool is_woken) {
  return std::make_unique<Await>(std::move(awaited), std::move(check), is_woken);
}

std::vector<Buffer> share_between_processes(Communicator& communicator, std::int64_t bytes,
                                            const std::vector<bool>& is_near) {
  const auto rank = static_cast<std::size_t>(communicator.rank());
  const OwnMemory own = make_memory(bytes);
  const std::vector<std::string> addresses = communicator.all_gather(own.address);
  std::vector<Buffer> parts(addresses.size());
  std::vector<std::string> reached_names;
  for (std::size_t member = 0; member < addresses.size(); ++member) {
    const std::optional<Address> address = address_of(addresses[member]);
    if (own.address.empty() || !address || !is_near[member]) continue;
    if (address->bytes != bytes) {
      throw CommError({.peers = {communicator.world_ranks()[member]}, .label = {.what = "share"}},
                      concat("this rank shares ", bytes, " bytes, that one ", address->bytes));
    }
    parts[member] = member == rank ? own.view : map_memory_of(*address);
    if (parts[member].block().data != nullptr) reached_names.push_back(concat(member));
  }
  // Files stay open until all have come here. Ranks share memory if each of them reaches the same
  // ranks. So all of them decide alike.
  const std::vector<std::string> reached = communicator.all_gather(join(reached_names, " "));
  for (std::size_t member = 0; member < parts.size(); ++member) {
    if (reached[member] != reached[rank]) parts[member] = {};
  }
  return parts;
}

}  // namespace gossamer
