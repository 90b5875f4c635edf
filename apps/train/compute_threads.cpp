#include "apps/train/compute_threads.hpp"

#include <algorithm>
#include <cmath>

#include <ATen/Parallel.h>

#include "apps/records/environment.hpp"
#include "apps/records/json.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

using CoresJson = nlohmann::ordered_json;

bool share_a_processor(const UsableCores& one, const UsableCores& other) {
  return std::ranges::any_of(one.processors, [&other](int processor) {
    return std::ranges::binary_search(other.processors, processor);
  });
}

bool share_a_quota(const UsableCores& one, const UsableCores& other) {
  return one.quota == other.quota && one.quota_from == other.quota_from;
}

std::string shared_by(std::int64_t num_ranks) {
  return num_ranks == 1 ? "" : concat(", shared by ", num_ranks, " ranks");
}

CoresJson json_of(const UsableCores& cores) {
  CoresJson json = {{"host", host_name()}, {"processors", cores.processors}};
  if (cores.quota) json.update({{"quota", *cores.quota}, {"quota_from", cores.quota_from}});
  return json;
}

UsableCores cores_of(const CoresJson& json) {
  UsableCores cores{.processors = json["processors"].get<std::vector<int>>()};
  if (!json.contains("quota")) return cores;
  cores.quota = json["quota"].get<double>();
  cores.quota_from = json["quota_from"].get<std::string>();
  return cores;
}

/// What the ranks of this rank's host may use.
std::vector<UsableCores> gather_on_host(const UsableCores& own, Communicator& communicator) {
  const CoresJson mine = json_of(own);
  std::vector<UsableCores> on_host;
  for (const std::string& text : communicator.all_gather(mine.dump())) {
    const CoresJson other = CoresJson::parse(text);
    if (other["host"] == mine["host"]) on_host.push_back(cores_of(other));
  }
  return on_host;
}

}  // namespace

ThreadShare share_of_cores(const UsableCores& own, const std::vector<UsableCores>& on_host) {
  const auto num_bound = std::max<std::int64_t>(
      1, std::ranges::count_if(
             on_host, [&own](const UsableCores& other) { return share_a_processor(own, other); }));
  const auto num_cores = std::ssize(own.processors);
  ThreadShare share{.threads = std::max<std::int64_t>(1, num_cores / num_bound)};
  std::string why =
      concat(num_cores, num_cores == 1 ? " processor" : " processors", shared_by(num_bound));
  if (own.quota) {
    const auto num_limited = std::max<std::int64_t>(
        1, std::ranges::count_if(
               on_host, [&own](const UsableCores& other) { return share_a_quota(own, other); }));
    const double quota = *own.quota / static_cast<double>(num_limited);
    if (quota < static_cast<double>(share.threads)) {
      share.threads = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::floor(quota)));
      why = concat("the CPU quota of ", own.quota_from, " is ", shortest(*own.quota),
                   *own.quota == 1.0 ? " core" : " cores", shared_by(num_limited));
    }
  }
  share.reason = concat(share.threads, share.threads == 1 ? " compute thread" : " compute threads",
                        " per rank: ", why);
  return share;
}

std::optional<ThreadShare> set_compute_threads(const RunConfig& config, const World& world,
                                               Communicator* communicator) {
  // Collective, so all ranks do it whatever their configuration says.
  const UsableCores own = usable_cores();
  const std::vector<UsableCores> on_host =
      communicator != nullptr
          ? gather_on_host(own, *communicator)
          : std::vector<UsableCores>(
                static_cast<std::size_t>(std::max(1, world.placement.local_world_size)), own);
  const ThreadShare share = share_of_cores(own, on_host);
  const bool is_given = config.threads > 0;
  at::set_num_threads(static_cast<int>(is_given ? config.threads : share.threads));
  return is_given ? std::nullopt : std::optional(share);
}

}  // namespace gossamer::apps
