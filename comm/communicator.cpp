#include "comm/communicator.hpp"

#include <algorithm>
#include <numeric>

namespace gossamer {

void Communicator::make_subgroups(std::string_view use,
                                  const std::vector<std::vector<int>>& groups) {
  auto& parts = subgroups_.try_emplace(std::string(use)).first->second;
  std::vector<std::vector<int>> fresh;
  int color = -1;
  for (const std::vector<int>& group : groups) {
    if (parts.contains(group)) continue;
    if (std::ranges::binary_search(group, rank())) color = static_cast<int>(std::ssize(fresh));
    fresh.push_back(group);
  }
  if (fresh.empty()) return;
  std::unique_ptr<Communicator> mine = split(color);
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    parts[fresh[i]] = static_cast<int>(i) == color ? std::move(mine) : nullptr;
  }
}

Communicator* Communicator::find_subgroup(std::string_view use,
                                          const std::vector<int>& group) const {
  const auto parts = subgroups_.find(use);
  if (parts == subgroups_.end()) return nullptr;
  const auto found = parts->second.find(group);
  return found == parts->second.end() ? nullptr : found->second.get();
}

Communicator& Communicator::duplicate(std::string_view use) {
  std::vector<int> everyone(static_cast<std::size_t>(size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  make_subgroups(use, {everyone});
  return *find_subgroup(use, everyone);
}

std::int64_t Communicator::num_subgroups() const {
  std::int64_t count = 0;
  for (const auto& [use, parts] : subgroups_) {
    count += std::ranges::count_if(parts, [](const auto& part) { return part.second != nullptr; });
  }
  return count;
}

}  // namespace gossamer
