#pragma once
// launch() in test programs whose ranks are processes: under mpirun with MPI, and under
// test_tcp_run (tcp_run.cpp) with the backend `tcp`.

#include "test/comm/folder_store.hpp"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>

#include "base/error.hpp"
#include "comm/backends.hpp"

namespace gossamer {

/// What test_tcp_run sets for every process.
inline constexpr const char* kStoreVariable = "GOSSAMER_TEST_STORE";
inline constexpr const char* kRankVariable = "GOSSAMER_TEST_RANK";
inline constexpr const char* kSizeVariable = "GOSSAMER_TEST_SIZE";
/// Set by who wants them.
inline constexpr const char* kInterfaceVariable = "GOSSAMER_TEST_INTERFACE";
inline constexpr const char* kSecretVariable = "GOSSAMER_TEST_SECRET";
inline constexpr const char* kSocketsVariable = "GOSSAMER_TEST_SOCKETS";

inline int launch_process(LaunchOptions options, const RankBody& body) {
  const auto text = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (text(kStoreVariable).empty()) return launch("mpi", options, body);
  MeetingOptions& meeting = options.meeting;
  meeting.store = std::make_shared<FolderStore>(text(kStoreVariable));
  meeting.rank = std::stoi(text(kRankVariable));
  meeting.size = std::stoi(text(kSizeVariable));
  meeting.interface = text(kInterfaceVariable);
  meeting.secret = text(kSecretVariable);
  meeting.reads_memory = text(kSocketsVariable).empty();
  // As the program does with what a start throws.
  try {
    return launch("tcp", options, body);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(exit_code_of(error));
  }
}

}  // namespace gossamer
