#include "apps/train/agreement.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <iostream>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "base/text.hpp"

namespace gossamer::apps {
namespace {

// Outcomes as ranks tell them: nothing for success, or the exit code, a blank, and the message.
constexpr std::string_view kBusy = "busy";
// Between two signs of life. Much shorter than any sensible comm.timeout_s.
constexpr auto kBeat = std::chrono::milliseconds(100);

std::string outcome_of(const std::exception& error) {
  return concat(static_cast<int>(exit_code_at_end(error)), " ", error.what());
}

std::string outcome_of(const std::shared_future<void>& work) {
  try {
    work.get();
    return "";
  } catch (const std::exception& error) {
    return outcome_of(error);
  } catch (...) {
    return outcome_of(std::runtime_error("an unknown error"));
  }
}

void throw_first(const std::vector<std::string>& all) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    const std::size_t blank = all[rank].find(' ');
    int code = static_cast<int>(ExitCode::kInternal);
    std::from_chars(all[rank].data(), all[rank].data() + blank, code);
    const std::string text = all[rank].substr(blank + 1);
    throw JointFailure(rank == 0 ? text : concat("on rank ", rank, ": ", text),
                       static_cast<ExitCode>(code));
  }
}

}  // namespace

ExitCode exit_code_at_end(const std::exception& error) {
  const auto* joint = dynamic_cast<const JointFailure*>(&error);
  return joint != nullptr ? joint->code() : exit_code_of(error);
}

bool is_stop(const std::exception& error) {
  const ExitCode code = exit_code_at_end(error);
  return code == ExitCode::kInterrupted || code == ExitCode::kTerminated ||
         code == ExitCode::kPreempted;
}

void agree_on_success(Communicator& communicator, const std::exception* error) {
  throw_first(communicator.all_gather(error == nullptr ? "" : outcome_of(*error)));
}

void agree_on_end(Communicator& communicator, const std::shared_future<void>& work) {
  for (;;) {
    const bool ended = work.wait_for(kBeat) == std::future_status::ready;
    const auto all = communicator.all_gather(ended ? outcome_of(work) : std::string(kBusy));
    if (std::ranges::find(all, kBusy) == all.end()) return throw_first(all);
  }
}

int exit_together(const World& world, const std::function<int()>& body) {
  const auto leave = [&world](const std::string& text, ExitCode code) {
    if (world.rank == 0) std::cerr << visible(text) << std::endl;
    return static_cast<int>(code);
  };
  try {
    return body();
  } catch (const JointFailure& failure) {
    return leave(failure.what(), failure.code());
  } catch (const RankLocalError&) {
    throw;
  } catch (const ConfigError& error) {
    return leave(error.what(), ExitCode::kConfig);
  }
}

}  // namespace gossamer::apps
