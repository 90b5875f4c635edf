#include "base/cores.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

#include <sched.h>

#include "base/text.hpp"

namespace gossamer {
namespace {

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

bool has_item(std::string_view list, std::string_view item) {
  while (!list.empty()) {
    const std::size_t end = list.find(',');
    if (list.substr(0, end) == item) return true;
    if (end == list.npos) break;
    list.remove_prefix(end + 1);
  }
  return false;
}

/// mountinfo has blanks and the like as `\040`.
std::string unescaped(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 3 >= text.size()) {
      result += text[i];
      continue;
    }
    int code = 0;
    for (std::size_t k = 1; k <= 3; ++k) code = 8 * code + (text[i + k] - '0');
    result += static_cast<char>(code);
    i += 3;
  }
  return result;
}

/// A hierarchy of cgroups that can limit processor time.
struct Hierarchy {
  /// True: cgroup v2, whose folders have cpu.max.
  bool is_unified = false;
  /// The process's place in it, as /proc/self/cgroup names it.
  std::string place = {};
  /// Where it is mounted, and which folder of it the mount shows.
  std::string mount = {};
  std::string mount_root = {};
};

/// Lines `id:controllers:place`; those of v2 have no controllers.
std::vector<Hierarchy> hierarchies_of(const std::string& root) {
  std::vector<Hierarchy> all;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string_view controllers =
        std::string_view(line).substr(first + 1, second - first - 1);
    const bool is_unified = controllers.empty();
    if (!is_unified && !has_item(controllers, "cpu")) continue;
    all.push_back({.is_unified = is_unified, .place = line.substr(second + 1)});
  }
  return all;
}

/// Finds where the hierarchies are mounted. A line of mountinfo has the root of the mount and the
/// mount point as words 4 and 5; behind a word `-` stand type, source and options.
void find_mounts(const std::string& root, std::vector<Hierarchy>& hierarchies) {
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words = words_of(line);
    const auto dash = std::ranges::find(words, "-");
    if (words.size() < 6 || words.end() - dash < 4) continue;
    const bool is_unified = dash[1] == "cgroup2";
    if (!is_unified && !(dash[1] == "cgroup" && has_item(dash[3], "cpu"))) continue;
    for (Hierarchy& one : hierarchies) {
      if (one.is_unified != is_unified || !one.mount.empty()) continue;
      one.mount_root = unescaped(words[3]);
      one.mount = unescaped(words[4]);
    }
  }
}

/// The folders of the process's cgroup and of those above it, as far as the mount shows them.
std::vector<std::string> folders_of(const Hierarchy& one) {
  std::string place = one.place;
  const std::string& shown = one.mount_root;
  if (shown != "/" && (place == shown || place.starts_with(shown + "/"))) {
    place.erase(0, shown.size());
  } else if (shown != "/" || place.find("/..") != place.npos) {
    // A container's mount begins at its own cgroup, of which the place may be told otherwise.
    place.clear();
  }
  std::vector<std::string> folders;
  for (; place.size() > 1; place.erase(place.rfind('/'))) folders.push_back(one.mount + place);
  folders.push_back(one.mount);
  return folders;
}

std::optional<double> number_in_file(const std::string& path) {
  std::ifstream file(path);
  double number = 0.0;
  if (!(file >> number)) return std::nullopt;
  return number;
}

/// The cores that a cgroup's quota is worth; none: it has no quota.
std::optional<double> quota_in(const std::string& folder, bool is_unified) {
  std::optional<double> quota;
  std::optional<double> period;
  if (is_unified) {
    // `max 100000` stands for no quota.
    std::ifstream file(folder + "/cpu.max");
    std::array<double, 2> numbers{};
    if (!(file >> numbers[0] >> numbers[1])) return std::nullopt;
    quota = numbers[0];
    period = numbers[1];
  } else {
    quota = number_in_file(folder + "/cpu.cfs_quota_us");
    period = number_in_file(folder + "/cpu.cfs_period_us");
  }
  if (!quota || !period || *quota <= 0.0 || *period <= 0.0) return std::nullopt;
  return *quota / *period;
}

std::vector<int> bound_processors() {
  // The call fails as long as the set is smaller than the kernel's.
  for (int most = 1024; most <= 1 << 20; most *= 2) {
    cpu_set_t* const set = CPU_ALLOC(most);
    if (set == nullptr) break;
    const std::size_t bytes = CPU_ALLOC_SIZE(most);
    CPU_ZERO_S(bytes, set);
    std::vector<int> processors;
    if (sched_getaffinity(0, bytes, set) == 0) {
      for (int i = 0; i < most; ++i) {
        if (CPU_ISSET_S(static_cast<std::size_t>(i), bytes, set)) processors.push_back(i);
      }
    }
    CPU_FREE(set);
    if (!processors.empty()) return processors;
  }
  return {0};
}

}  // namespace

int UsableCores::count() const {
  auto cores = static_cast<double>(processors.size());
  if (quota) cores = std::min(cores, std::floor(*quota));
  return std::max(1, static_cast<int>(cores));
}

UsableCores usable_cores(const std::string& root) {
  UsableCores usable{.processors = bound_processors()};
  std::vector<Hierarchy> hierarchies = hierarchies_of(root);
  find_mounts(root, hierarchies);
  for (const Hierarchy& one : hierarchies) {
    if (one.mount.empty()) continue;
    for (const std::string& folder : folders_of(one)) {
      const std::optional<double> quota = quota_in(root + folder, one.is_unified);
      if (!quota || (usable.quota && *usable.quota <= *quota)) continue;
      usable.quota = quota;
      usable.quota_from = folder;
    }
  }
  return usable;
}

}  // namespace gossamer
