#include "apps/train/start_command.hpp"

#include "base/text.hpp"

namespace gossamer::apps {

std::string command_to_start(const std::string& program, int size, const StartOptions& options,
                             const Start& start, const Environment& environment) {
  const auto variable = [&environment](const char* name) -> std::string {
    const char* const value = environment(name);
    return value == nullptr ? "" : value;
  };
  if (start.parent > 0) return concat(program, " --processes ", size);
  std::string place = options.join.empty() ? options.rendezvous : options.join;
  if (place.empty()) place = variable("GOSSAMER_RENDEZVOUS");
  const bool is_slurm = place == "slurm" || (place.empty() && !variable("SLURM_STEP_ID").empty());
  if (is_slurm) {
    return concat("srun -n ", size, " ", program, place.empty() ? "" : " --rendezvous slurm");
  }
  // What torchrun was told for each host, its processes cannot know.
  if (place.empty()) return concat(program, ", by the launcher as before, with ", size, " ranks");
  const std::string run_id = options.run_id.empty() ? variable("GOSSAMER_RUN_ID") : options.run_id;
  return concat(program, " --rendezvous ", shell_word(place), " --world-size ", size,
                run_id.empty() ? "" : concat(" --run-id ", run_id), ", once for each of the ", size,
                size == 1 ? " rank" : " ranks", options.rank < 0 ? "" : ", with its --rank");
}

}  // namespace gossamer::apps
