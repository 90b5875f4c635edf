#pragma once
// Ranks of the backend `tcp` that are threads of this process and meet in its memory.

#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "comm/backends.hpp"
#include "comm/rendezvous/memory_store.hpp"

namespace gossamer::tcp {

/// The options of one rank of `size`, for ranks that share `store`.
inline LaunchOptions rank_options(std::shared_ptr<Store> store, int rank, int size,
                                  LaunchOptions options = {}) {
  options.meeting.store = std::move(store);
  options.meeting.rank = rank;
  options.meeting.size = size;
  return options;
}

/// launch() for each of `size` ranks. Returns their exit codes.
inline std::vector<int> launch_ranks(int size, const LaunchOptions& options, const RankBody& body) {
  const auto store = std::make_shared<MemoryStore>();
  std::vector<int> codes(static_cast<std::size_t>(size), -1);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        int& code = codes[static_cast<std::size_t>(rank)];
        try {
          code = launch("tcp", rank_options(store, rank, size, options), body);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << rank << " has not begun: " << error.what();
        }
      });
    }
  }
  return codes;
}

}  // namespace gossamer::tcp
