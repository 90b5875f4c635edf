#include "gossamer/apps/agreement.hpp"

#include <charconv>
#include <vector>

#include "gossamer/core/base/text.hpp"

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

}  // namespace gossamer::apps
