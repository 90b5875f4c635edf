#include "core/checkpoint/compare.hpp"

#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "base/text.hpp"
#include "core/checkpoint/safetensors.hpp"

namespace gossamer {
namespace {

bool is_state(const std::string& name) { return !name.starts_with("record/"); }

std::vector<char> bytes_of(const SafetensorsFile& file, const TensorEntry& tensor) {
  std::vector<char> bytes(static_cast<std::size_t>(tensor.num_bytes()));
  file.read(tensor, bytes.data());
  return bytes;
}

std::string text_of(const std::vector<std::int64_t>& shape) {
  return concat("[", join(shape, ", "), "]");
}

template <class T>
std::string largest_difference(const std::vector<char>& a, const std::vector<char>& b) {
  double largest = 0.0;
  std::size_t where = 0;
  for (std::size_t i = 0; i < a.size() / sizeof(T); ++i) {
    T x{};
    T y{};
    std::memcpy(&x, a.data() + i * sizeof(T), sizeof(T));
    std::memcpy(&y, b.data() + i * sizeof(T), sizeof(T));
    const double difference = std::abs(static_cast<double>(x) - static_cast<double>(y));
    if (difference > largest || std::isnan(difference)) {
      largest = difference;
      where = i;
    }
  }
  return concat("differs by ", shortest(largest), " at element ", where);
}

std::string compare(const SafetensorsFile& first, const TensorEntry& a,
                    const SafetensorsFile& second, const TensorEntry& b) {
  if (a.dtype != b.dtype) return concat("is ", a.dtype, " in the first and ", b.dtype);
  if (a.shape != b.shape) {
    return concat("has the shape ", text_of(a.shape), " in the first and ", text_of(b.shape));
  }
  const std::vector<char> x = bytes_of(first, a);
  const std::vector<char> y = bytes_of(second, b);
  if (x == y) return "";
  if (a.dtype == "F32") return largest_difference<float>(x, y);
  if (a.dtype == "F64") return largest_difference<double>(x, y);
  if (a.dtype == "I64") return largest_difference<std::int64_t>(x, y);
  return "differs";
}

}  // namespace

std::string hash_of_state(const std::string& folder, const Manifest& manifest) {
  Sha256 sha;
  const auto add = [&sha](const std::string& text) {
    // With the end of the text, so that no two lists of texts look alike.
    sha.update(text.c_str(), text.size() + 1);
  };
  for (int rank = 0; rank < manifest.world_size; ++rank) {
    const SafetensorsFile file(concat(folder, "/", rank_file_name(rank)));
    std::set<std::string> names;
    for (const TensorEntry& tensor : file.tensors()) {
      if (is_state(tensor.name)) names.insert(tensor.name);
    }
    for (const std::string& name : names) {
      const TensorEntry& tensor = *file.find(name);
      add(name);
      add(tensor.dtype);
      add(text_of(tensor.shape));
      const std::vector<char> bytes = bytes_of(file, tensor);
      sha.update(bytes.data(), bytes.size());
    }
  }
  return sha.hex();
}

std::vector<StateDifference> differences_of(const std::string& first, const std::string& second,
                                            int world_size) {
  std::vector<StateDifference> differences;
  for (int rank = 0; rank < world_size; ++rank) {
    const SafetensorsFile a(concat(first, "/", rank_file_name(rank)));
    const SafetensorsFile b(concat(second, "/", rank_file_name(rank)));
    std::set<std::string> names;
    for (const SafetensorsFile* file : {&a, &b}) {
      for (const TensorEntry& tensor : file->tensors()) {
        if (is_state(tensor.name)) names.insert(tensor.name);
      }
    }
    for (const std::string& name : names) {
      const TensorEntry* x = a.find(name);
      const TensorEntry* y = b.find(name);
      std::string text = x == nullptr   ? "is missing in the first"
                         : y == nullptr ? "is missing in the second"
                                        : compare(a, *x, b, *y);
      if (!text.empty()) differences.push_back({rank, name, std::move(text)});
    }
  }
  return differences;
}

}  // namespace gossamer
