// test_tcp_run [-n N] PROGRAM ARGUMENTS...: starts N processes of PROGRAM, which are the ranks of
// one run over the backend `tcp`, as far as test/comm/process_ranks.hpp is concerned. Waits for
// all. What is still there three seconds after the first failure gets killed. Returns the code of
// the rank that ended first with a code that is not 0, and writes the codes of all; 128 and the
// number of the signal for one that was killed.

#include "test/comm/process_ranks.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/text.hpp"

namespace gossamer {
namespace {

constexpr auto kGrace = std::chrono::seconds(3);
constexpr int kPeerLost = static_cast<int>(ExitCode::kPeerLost);

pid_t start(char** command, const std::string& folder, int rank, int size) {
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) {
    std::perror("fork");
    std::exit(1);
  }
  if (child > 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  setenv(kStoreVariable, folder.c_str(), 1);
  setenv(kRankVariable, std::to_string(rank).c_str(), 1);
  setenv(kSizeVariable, std::to_string(size).c_str(), 1);
  execvp(command[0], command);
  std::perror(command[0]);
  _exit(127);
}

int code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

std::size_t rank_of(const std::vector<pid_t>& children, pid_t child) {
  return static_cast<std::size_t>(std::ranges::find(children, child) - children.begin());
}

int run(char** command, int size) {
  std::string folder = (std::filesystem::temp_directory_path() / "tcp_run_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return 1;
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) children.push_back(start(command, folder, rank, size));
  std::vector<int> codes(children.size());
  int code = 0;
  auto end = std::chrono::steady_clock::time_point::max();
  for (int num_left = size; num_left > 0;) {
    int status = 0;
    const pid_t child = waitpid(-1, &status, WNOHANG);
    if (child > 0) {
      --num_left;
      const std::size_t rank = rank_of(children, child);
      codes[rank] = code_of(status);
      children[rank] = 0;
      const bool has_started_killing = std::chrono::steady_clock::now() > end;
      if (code_of(status) == 0 || has_started_killing) continue;
      if (code == 0) end = std::chrono::steady_clock::now() + kGrace;
      if (code == 0 || code == kPeerLost) code = code_of(status);
      continue;
    }
    if (std::chrono::steady_clock::now() > end) {
      for (const pid_t other : children) {
        if (other > 0) kill(other, SIGKILL);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::filesystem::remove_all(folder);
  std::fprintf(stderr, "codes of the ranks: %s\n", join(codes, " ").c_str());
  return code;
}

}  // namespace
}  // namespace gossamer

int main(int argc, char** argv) {
  int size = 2;
  int first = 1;
  if (argc > 3 && argv[1] == std::string_view("-n")) {
    size = std::stoi(argv[2]);
    first = 3;
  }
  if (first >= argc) return 2;
  return gossamer::run(argv + first, size);
}
