#include "core/checkpoint/manifest.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <limits>
#include <set>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/checkpoint/open_file.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/checkpoint/whole_file.hpp"

namespace gossamer {
namespace {

constexpr std::int64_t kVersion = 1;
constexpr std::int64_t kMostBytes = std::int64_t{64} << 20U;
constexpr int kMostDepth = 3;
constexpr std::string_view kPrefix = "step-";

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw CheckpointError(concat(path, " is not a valid manifest: ", why));
}

/// Parses an object of at most kMostDepth levels without duplicate keys. The result is sorted by
/// key, because a hostile manifest may have very many.
nlohmann::json parse(const std::string& text, const std::string& path) {
  std::vector<std::set<std::string>> keys(kMostDepth + 2);
  const auto watch = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    const auto level = static_cast<std::size_t>(depth);
    if (event == nlohmann::json::parse_event_t::object_start ||
        event == nlohmann::json::parse_event_t::array_start) {
      if (depth >= kMostDepth) refuse(path, "it is nested too deeply");
      keys[level + 1].clear();
    }
    if (event == nlohmann::json::parse_event_t::key &&
        !keys[level].insert(value.get<std::string>()).second) {
      refuse(path, concat("the key ", value.get<std::string>(), " comes twice"));
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text, watch);
  } catch (const nlohmann::json::exception&) {
    refuse(path, "it is not JSON");
  }
}

/// A name that stays in the folder: letters, digits, `.`, `-` and `_`, and no dot at the beginning.
bool is_file_name(const std::string& name) {
  const auto allowed = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
  };
  return !name.empty() && name.size() <= 255 && name.front() != '.' &&
         std::ranges::all_of(name, allowed);
}

bool is_digest(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::int64_t count_of(const nlohmann::json& json, const char* key, std::int64_t most,
                      std::int64_t least = 0) {
  const nlohmann::json& value = json.at(key);
  const std::int64_t number = value.is_number_integer() ? value.get<std::int64_t>() : -1;
  if (number < least || number > most) throw std::out_of_range(concat(key, " is out of range"));
  return number;
}

Manifest manifest_of(const nlohmann::json& json) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (count_of(json, "version", kMost) != kVersion) {
    throw std::out_of_range("it has another version than this program reads");
  }
  Manifest manifest{.step = count_of(json, "step", kMost),
                    .world_size = static_cast<int>(count_of(json, "world_size", 1 << 20U, 1)),
                    .run = json.at("run").get<std::map<std::string, std::string>>()};
  for (const auto& [name, file] : json.at("files").items()) {
    if (!is_file_name(name))
      throw std::out_of_range(concat(nlohmann::json(name).dump(), " is no file name"));
    FileDigest& entry = manifest.files[name];
    entry = {.num_bytes = count_of(file, "bytes", kMost), .sha256 = file.at("sha256")};
    if (!is_digest(entry.sha256)) throw std::out_of_range(concat(name, " has no SHA-256"));
  }
  if (json.contains("members")) {
    manifest.members = json.at("members").get<std::vector<std::int64_t>>();
    if (std::ssize(manifest.members) != manifest.world_size) {
      throw std::out_of_range("it has not as many members as ranks");
    }
  }
  for (int rank = 0; rank < manifest.world_size; ++rank) {
    if (manifest.files.contains(rank_file_name(rank))) continue;
    throw std::out_of_range(concat("it lacks ", rank_file_name(rank)));
  }
  return manifest;
}

std::string padded(std::int64_t number, std::size_t width) {
  const std::string digits = std::to_string(number);
  return std::string(width - std::min(width, digits.size()), '0') + digits;
}

}  // namespace

std::string rank_file_name(int rank) { return concat("rank-", padded(rank, 5), ".safetensors"); }

std::string checkpoint_name(std::int64_t step) { return concat(kPrefix, padded(step, 9)); }

void write_manifest(const std::string& folder, const Manifest& manifest) {
  nlohmann::ordered_json json = {{"version", kVersion},
                                 {"step", manifest.step},
                                 {"world_size", manifest.world_size},
                                 {"run", manifest.run},
                                 {"files", nlohmann::ordered_json::object()}};
  if (!manifest.members.empty()) json["members"] = manifest.members;
  for (const auto& [name, file] : manifest.files) {
    json["files"][name] = {{"bytes", file.num_bytes}, {"sha256", file.sha256}};
  }
  const std::string path = concat(folder, "/", kManifestName);
  const std::string text =
      json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  if (std::ssize(text) > kMostBytes) {
    throw CheckpointError(concat(path, " cannot be written: it would have ", text.size(),
                                 " bytes; at most ", kMostBytes, " are read"));
  }
  write_whole_file(path, text, /*sync=*/true);
}

Manifest read_manifest(const std::string& folder) {
  const OpenFile file(concat(folder, "/", kManifestName));
  const nlohmann::json json = parse(file.text(kMostBytes), file.path());
  try {
    return manifest_of(json);
  } catch (const nlohmann::json::exception&) {
    refuse(file.path(), "a key is missing or has a wrong type");
  } catch (const std::out_of_range& error) {
    refuse(file.path(), error.what());
  }
}

Manifest verify_checkpoint(const std::string& folder) {
  Manifest manifest = read_manifest(folder);
  for (const auto& [name, expected] : manifest.files) {
    const std::string path = concat(folder, "/", name);
    const std::int64_t num_bytes = OpenFile(path).num_bytes();
    if (num_bytes != expected.num_bytes) {
      throw CheckpointError(
          concat(path, " has ", num_bytes, " bytes, and the manifest says ", expected.num_bytes));
    }
    if (digest_of_file(path) != expected) {
      throw CheckpointError(concat(path,
                                   " has other contents than when it was written: its "
                                   "SHA-256 is not the manifest's"));
    }
    if (name.ends_with(".safetensors")) const SafetensorsFile opened(path);
  }
  return manifest;
}

std::vector<std::string> list_checkpoints(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code failure;
  const std::filesystem::directory_iterator entries(folder, failure);
  if (failure && failure != std::errc::no_such_file_or_directory &&
      failure != std::errc::not_a_directory) {
    throw CheckpointError(concat(folder, " cannot be read: ", failure.message()));
  }
  for (const auto& entry : entries) {
    const std::string name = entry.path().filename().string();
    const std::string digits = name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : "";
    if (digits.size() < 9 || digits.find_first_not_of("0123456789") != std::string::npos) continue;
    names.push_back(concat(folder, "/", name));
  }
  // Longer numbers are larger ones.
  std::ranges::sort(names, {},
                    [](const std::string& name) { return std::pair(name.size(), name); });
  return names;
}

}  // namespace gossamer
