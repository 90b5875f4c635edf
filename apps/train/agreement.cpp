#include "apps/train/agreement.hpp"

#include <charconv>
#include <iostream>
#include <vector>

#include "base/text.hpp"

namespace gossamer::apps {

void agree_on_success(Communicator& communicator, const std::exception* error) {
  // The exit code, a blank, the message; empty for success.
  std::string mine;
  if (error != nullptr) mine = concat(static_cast<int>(exit_code_of(*error)), " ", error->what());
  const std::vector<std::string> all = communicator.all_gather(mine);
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

int leaving_together(const World& world, const std::function<int()>& body) {
  const auto leave = [&world](const std::string& text, ExitCode code) {
    if (world.rank == 0) std::cerr << text << std::endl;
    return static_cast<int>(code);
  };
  try {
    return body();
  } catch (const JointFailure& failure) {
    return leave(failure.what(), failure.code());
  } catch (const ConfigError& error) {
    return leave(error.what(), ExitCode::kConfig);
  }
}

}  // namespace gossamer::apps
