#include "apps/program/program.hpp"

#include <algorithm>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <torch/version.h>

#include "apps/commands/commands.hpp"
#include "apps/train/agreement.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/backends.hpp"
#ifdef GOSSAMER_HAVE_MPI
#include "comm/mpi/check.hpp"
#endif
#if defined(GOSSAMER_HAVE_JEMALLOC)
#include <jemalloc/jemalloc.h>
#elif defined(__GLIBC__)
#include <malloc.h>
#endif

#if defined(GOSSAMER_HAVE_JEMALLOC)
// jemalloc reads this when it starts; what MALLOC_CONF says counts on top. Pages are never given
// back, and large blocks live in the same arenas as all others, so that they are found again.
// NOLINTNEXTLINE: the name and type are jemalloc's
const char* malloc_conf = "dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0";
#endif

namespace gossamer::apps {
namespace {

/// Makes freed memory stay in the process. Gradients come and go in every step: given back to the
/// kernel, they fault in again page by page. Call it before anything allocates much.
#if defined(GOSSAMER_HAVE_JEMALLOC)

void keep_freed_memory() {}
const char* allocator_name() { return "jemalloc"; }

#else

void keep_freed_memory() {
#if defined(__GLIBC__)
  // glibc before 2.38 cannot reuse the hole that an aligned block of the same size has left (bug
  // 14581). A process that keeps larger blocks than kKeep in its heap would grow without end.
  constexpr int kKeep = 1024 * 1024;
  mallopt(M_MMAP_THRESHOLD, kKeep);
  mallopt(M_TRIM_THRESHOLD, 64 * kKeep);
#endif
}
const char* allocator_name() { return "the C library's"; }

#endif

std::string mpi_version() {
#ifdef GOSSAMER_HAVE_MPI
  return mpi_library_version();
#else
  return "not built in";
#endif
}

std::string_view nccl_text() {
#ifdef GOSSAMER_HAVE_CUDA
  return "loaded when a GPU is asked for";
#else
  return "not in this build (no CUDA)";
#endif
}

/// What this program was built with and runs on, one line each.
std::string version_text() {
  return concat("gossamer ", GOSSAMER_VERSION, "\n", "LibTorch ", TORCH_VERSION, "\n", "MPI      ",
                mpi_version(), "\n", "NCCL     ", nccl_text(), "\n", "compiler ", GOSSAMER_COMPILER,
                "\n", "memory   ", allocator_name());
}

/// Under mpirun a process that leaves without MPI takes the others down, perhaps before anybody has
/// said why. So all ranks start, one rank speaks, and all leave together. When `error` belongs to
/// one rank alone, the others are in their first all_or_none(), and learn of it there.
int leave_together(const std::string& to_stdout, std::string error, ExitCode code) {
  while (error.ends_with('\n')) error.pop_back();
  error = visible(error);
  if (!under_mpi_launcher()) {
    (code == ExitCode::kDone ? std::cout << to_stdout : std::cerr << error << '\n') << std::flush;
    return static_cast<int>(code);
  }
  const auto leave = [&](Communicator& communicator, const World& world) {
    return exit_together(world, [&] {
      all_or_none(communicator, [&] {
        if (code != ExitCode::kDone) throw JointFailure(error, code);
        return true;
      });
      if (world.rank == 0) std::cout << to_stdout << std::flush;
      return static_cast<int>(ExitCode::kDone);
    });
  };
  try {
    return launch(default_backend(), {}, leave);
  } catch (const std::exception&) {
    // The system gives no thread even for one rank.
    std::cout << to_stdout << std::flush;
    if (!error.empty()) std::cerr << error << std::endl;
    return static_cast<int>(code);
  }
}

/// CLI11 would only say that a command is missing.
void check_command(const CLI::App& program, std::string_view word) {
  std::vector<std::string> names;
  for (const CLI::App* command : program.get_subcommands(nullptr)) {
    names.push_back(command->get_name());
  }
  if (word.starts_with("-") || std::ranges::find(names, word) != names.end()) return;
  throw ConfigError(concat("there is no command ", word, did_you_mean(word, names),
                           ", allowed: ", join(names, ", "), "; every command has --help"));
}

int run(int argc, char** argv, const PlugIns& own) {
  CLI::App program("Training of neural networks without a centre.");
  program.set_version_flag("--version", [] { return version_text(); });
  program.require_subcommand(1);
  program.footer(
      "Examples:\n"
      "  mpirun -n 4 gossamer train configs/quickstart.yaml\n"
      "  gossamer list optimizers\n"
      "  gossamer topology show base-k --world-size 6\n"
      "  gossamer simulate consensus --topology ring --world-size 16 --rounds 200\n"
      "Every command has --help.");
  int exit_code = static_cast<int>(ExitCode::kDone);
  add_train_command(program, exit_code, own);
  add_bench_command(program, exit_code, own);
  add_replay_command(program, exit_code);
  add_simulate_command(program, exit_code, own);
  add_topology_command(program, exit_code, own);
  add_checkpoint_command(program, exit_code);
  add_report_command(program, exit_code, own);
  add_watch_command(program, exit_code);
  add_list_command(program, exit_code, own);
  add_plan_command(program, exit_code, own);
  add_rendezvous_command(program);
  add_secret_command(program);
  try {
    own.check();
    if (argc > 1) check_command(program, argv[1]);
    program.parse(argc, argv);
    return exit_code;
  } catch (const CLI::ParseError& error) {
    std::ostringstream out;
    std::ostringstream err;
    const bool failed = program.exit(error, out, err) != 0;
    return leave_together(out.str(), err.str(), failed ? ExitCode::kConfig : ExitCode::kDone);
  } catch (const std::exception& error) {
    return leave_together("", error.what(), exit_code_of(error));
  }
}

}  // namespace
}  // namespace gossamer::apps

int gossamer::run_program(int argc, char** argv, const PlugIns& own) {
  apps::keep_freed_memory();
  return apps::run(argc, argv, own);
}
