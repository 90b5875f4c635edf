#pragma once
// Readers of what the trainer writes into a folder.

#include "test/base/folder.hpp"

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace gossamer::apps {

namespace fs = std::filesystem;

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The records of a run's folder.
inline std::vector<nlohmann::json> read_records(const std::string& path) {
  std::vector<nlohmann::json> records;
  std::ifstream lines(path + "/metrics.jsonl");
  for (std::string line; std::getline(lines, line);) {
    records.push_back(nlohmann::json::parse(line));
  }
  return records;
}

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

template <class T>
std::vector<T> values_at(const std::string& bytes, std::size_t begin, std::size_t end) {
  std::vector<T> values((end - begin) / sizeof(T));
  std::memcpy(values.data(), bytes.data() + begin, end - begin);
  return values;
}

struct ParsedSafetensors {
  nlohmann::ordered_json header;
  std::string values;
};

/// By the format's specification: 8 bytes of little endian length, the header, the values.
inline ParsedSafetensors parse_safetensors(const std::string& bytes) {
  std::size_t length = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    length |= static_cast<std::size_t>(static_cast<std::uint8_t>(bytes.at(i))) << 8 * i;
  }
  EXPECT_EQ((8 + length) % 8, 0U) << "values must begin at a multiple of 8 bytes";
  EXPECT_EQ(bytes.at(8), '{');
  return {nlohmann::ordered_json::parse(bytes.substr(8, length)), bytes.substr(8 + length)};
}

}  // namespace gossamer::apps
