#pragma once
// What every backend must do, as functions that all ranks of a run call together. The threads
// backend runs them under GoogleTest for several numbers of ranks, MPI under mpirun.

#include "test/support/sanitized.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "base/text.hpp"
#include "comm/communicator.hpp"

namespace gossamer {

struct ConformanceCase {
  std::string_view name;
  /// Throws std::runtime_error when something is not as it should be.
  void (*body)(Communicator& communicator);
};

std::span<const ConformanceCase> conformance_cases();

// Cases that conformance_sums.cpp defines.

/// Sums of values that are exact in every type, on communicators of any size.
void sums_over_all(Communicator& communicator);
/// Every member gets the sum of its own part of a block, where its own values were; all parts at
/// the same time.
void reduces_to_every_root(Communicator& communicator);
/// Floating point sums that depend on the order of adding are the same on all ranks, every time.
void repeats_sums_bit_for_bit(Communicator& communicator);
/// Large and small sums together, each with a sum of the sum behind it, waited for in any order.
void keeps_many_sums_in_flight(Communicator& communicator);

// The case that conformance_messages.cpp defines.

/// Tagged messages wait for nothing, and nothing waits for them.
void sends_messages(Communicator& communicator);

// The case that conformance_sharing.cpp defines.

/// Every rank writes its part again and again, and the others read it in time.
void shares_memory(Communicator& communicator);
/// Throws unless this rank reaches just the `expected` members.
void require_reached(Communicator& communicator, const std::function<bool(int member)>& expected);

/// The numbers of threads that are ranks. The release build tests all of them, a sanitizer those
/// that stand for the others.
inline const std::vector<int> kRankCounts = kThreadSanitized ? std::vector{3}
                                            : kSanitized     ? std::vector{1, 4}
                                                             : std::vector{1, 2, 3, 4, 7};

// Empty, one, odd, a power of two and its neighbour, and more than MPI sends without asking.
inline constexpr std::array<std::int64_t, 7> kSizes = {0, 1, 2, 31, 1024, 1025, 70'001};

/// Throws unless `condition` holds.
template <class... Args>
void require(bool condition, const Args&... what) {
  if (!condition) throw std::runtime_error(concat(what...));
}

}  // namespace gossamer
