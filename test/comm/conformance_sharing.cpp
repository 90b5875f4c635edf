// Memory that members of a communicator share, and counters in it.

#include "test/comm/conformance.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

namespace gossamer {
namespace {

constexpr std::int64_t kNumel = 5'000;
constexpr std::int64_t kPart = 64 + kNumel * 8;

Counter& counter_of(const Buffer& part) {
  return *std::launder(static_cast<Counter*>(part.block().data));
}

std::span<std::int64_t> values_of_part(const Buffer& part) {
  auto* const first = static_cast<std::byte*>(part.block().data) + 64;
  return {reinterpret_cast<std::int64_t*>(first), static_cast<std::size_t>(kNumel)};
}

/// The other members that this one reaches.
std::vector<int> reached_by(const Communicator& communicator, const std::vector<Buffer>& parts) {
  require(std::ssize(parts) == communicator.size(), "one part per member");
  std::vector<int> reached;
  for (int member = 0; member < communicator.size(); ++member) {
    const Buffer& part = parts[static_cast<std::size_t>(member)];
    if (member == communicator.rank() || part.block().data == nullptr) continue;
    require(part.block().bytes() == kPart, "the size of a part");
    reached.push_back(member);
  }
  return reached;
}

/// Waits until all `members` have come to `least`.
void await_all(Communicator& communicator, const std::vector<Buffer>& parts,
               const std::vector<int>& members, std::uint64_t least) {
  std::vector<Awaited> awaited;
  for (const int member : members) {
    awaited.push_back({member, &counter_of(parts[static_cast<std::size_t>(member)]), least});
  }
  communicator.shared_memory()
      ->wait_signals(std::move(awaited), {.label = {.what = "counters"}})
      .wait();
}

}  // namespace

void shares_memory(Communicator& communicator) {
  SharedMemory* const memory = communicator.shared_memory();
  const auto answers = communicator.all_gather(memory != nullptr ? "yes" : "no");
  require(std::ranges::count(answers, answers.front()) == std::ssize(answers),
          "some members have shared memory, and some have none");
  if (memory == nullptr) return;
  const auto parts = memory->allocate(kPart);
  const auto others = reached_by(communicator, parts);
  std::string list;
  for (const int member : others) list += concat(" ", member, " ");
  const auto lists = communicator.all_gather(list);
  const std::string me = concat(" ", communicator.rank(), " ");
  for (const int member : others) {
    require(lists[static_cast<std::size_t>(member)].find(me) != std::string::npos, "rank ", member,
            " is reached and does not reach this rank");
    for (const std::int64_t value : values_of_part(parts[static_cast<std::size_t>(member)])) {
      require(value == 0, "new memory holds zeros");
    }
  }
  communicator.barrier();
  if (others.empty()) return;
  const Buffer& own = parts[static_cast<std::size_t>(communicator.rank())];
  // An odd count: written. An even one: read.
  for (std::uint64_t round = 0; round < 30; ++round) {
    std::ranges::fill(values_of_part(own),
                      static_cast<std::int64_t>(round) * 100 + communicator.rank());
    memory->signal(counter_of(own), 2 * round + 1);
    await_all(communicator, parts, others, 2 * round + 1);
    for (const int member : others) {
      for (const std::int64_t value : values_of_part(parts[static_cast<std::size_t>(member)])) {
        require(value == static_cast<std::int64_t>(round) * 100 + member, "round ", round,
                " of rank ", member);
      }
    }
    memory->signal(counter_of(own), 2 * round + 2);
    await_all(communicator, parts, others, 2 * round + 2);
  }
}

void require_reached(Communicator& communicator, const std::function<bool(int member)>& expected) {
  const auto parts = communicator.shared_memory()->allocate(kPart);
  for (int member = 0; member < communicator.size(); ++member) {
    const bool is_reached = parts[static_cast<std::size_t>(member)].block().data != nullptr;
    require(is_reached == expected(member), "rank ", member,
            is_reached ? " is reached" : " is not reached");
  }
}

}  // namespace gossamer
