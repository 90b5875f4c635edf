#pragma once
// Ranks of any backend that a test runs on threads of its own.

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm/backends.hpp"
#include "comm/rendezvous/memory_store.hpp"
#include "comm/session.hpp"
#include "comm/store.hpp"

namespace gossamer::elastic_test {

/// Opens the session of one rank, on its own thread.
using OpenSession = std::function<std::unique_ptr<Session>()>;

/// Calls `live` for each of the ranks that begin a run, on a thread of its own. `store`: where
/// ranks of the backend `tcp` meet.
inline void on_ranks(const std::string& backend, int size, const std::shared_ptr<Store>& store,
                     const LaunchOptions& options,
                     const std::function<void(int rank, const OpenSession& open)>& live) {
  Sessions together;
  if (backend == "threads") {
    LaunchOptions all = options;
    all.num_ranks = size;
    together = open_sessions(backend, all);
  }
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      live(rank, [&]() -> std::unique_ptr<Session> {
        if (!together.empty()) return std::move(together[static_cast<std::size_t>(rank)]);
        LaunchOptions own = options;
        own.meeting.store = store;
        own.meeting.rank = rank;
        own.meeting.size = size;
        return std::move(open_sessions(backend, own).front());
      });
    });
  }
}

/// Calls `live` with the session of each of the ranks that begin a run, on a thread of its own.
inline void run_sessions(const std::string& backend, int size, const LaunchOptions& options,
                         const std::function<void(Session& session)>& live) {
  on_ranks(backend, size, std::make_shared<MemoryStore>(), options,
           [&live](int rank, const OpenSession& open) {
             try {
               live(*open());
             } catch (const std::exception& error) {
               ADD_FAILURE() << "rank " << rank << ": " << error.what();
             }
           });
}

}  // namespace gossamer::elastic_test
