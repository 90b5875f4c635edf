#include "apps/records/environment.hpp"

#include <array>
#include <chrono>
#include <cmath>
#include <ctime>
#include <fstream>
#include <sstream>
#include <thread>

#include <unistd.h>

#include "base/cores.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

using Json = nlohmann::ordered_json;

/// The rest of the first line of a file that begins with `key`, after the colon.
std::string value_in(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t begin = line.find_first_not_of(": \t", key.size());
    return begin == line.npos ? "" : line.substr(begin);
  }
  return "unknown";
}

Json this_host() {
  std::istringstream memory(value_in("/proc/meminfo", "MemTotal"));
  double kilobytes = 0.0;
  memory >> kilobytes;
  return {{"name", host_name()},
          {"processor", value_in("/proc/cpuinfo", "model name")},
          {"cores", std::thread::hardware_concurrency()},
          {"usable_cores", usable_cores().count()},
          {"memory_gb", std::round(kilobytes / 1e5) / 10.0}};
}

std::string now() {
  const std::time_t time = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::array<char, 32> text{};
  std::tm utc{};
  ::gmtime_r(&time, &utc);
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text.data();
}

Json versions_of(const std::string& lines) {
  Json versions = Json::object();
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) {
    const std::size_t end = line.find(' ');
    const std::size_t begin = line.find_first_not_of(' ', end);
    if (begin != line.npos) versions[line.substr(0, end)] = line.substr(begin);
  }
  return versions;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "host";
}

Json describe_environment(Communicator& communicator, const World& world,
                          const std::string& versions) {
  Json hosts = Json::array();
  const std::vector<std::string> all = communicator.all_gather(this_host().dump());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Json host = Json::parse(all[rank]);
    Json* known = nullptr;
    for (Json& other : hosts) {
      if (other["name"] == host["name"]) known = &other;
    }
    if (known == nullptr) {
      hosts.push_back(host);
      known = &hosts.back();
      (*known)["ranks"] = Json::array();
    }
    (*known)["ranks"].push_back(rank);
  }
  return {{"started", now()},
          {"world_size", world.size},
          {"node_size", world.node_size},
          {"versions", versions_of(versions)},
          {"hosts", hosts}};
}

}  // namespace gossamer::apps
