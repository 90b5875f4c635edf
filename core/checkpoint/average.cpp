#include "core/checkpoint/average.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "base/bfloat16.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/safetensors.hpp"

namespace gossamer {
namespace {

using Bytes = std::vector<char>;

template <class Number>
Number number_at(const Bytes& bytes, std::size_t index) {
  Number value;
  std::memcpy(&value, bytes.data() + index * sizeof(Number), sizeof(Number));
  return value;
}

/// Combines element by element.
template <class Number, class Combine>
Bytes combined(const std::vector<Bytes>& ranks, const Combine& combine) {
  Bytes result(ranks.front().size());
  for (std::size_t i = 0; i < result.size() / sizeof(Number); ++i) {
    const Number value = combine(i);
    std::memcpy(result.data() + i * sizeof(Number), &value, sizeof(Number));
  }
  return result;
}

/// `weights`: of the ranks; their sum is the number of ranks.
template <class Number>
Bytes mean(const std::vector<Bytes>& ranks, const std::vector<double>& weights) {
  return combined<Number>(ranks, [&](std::size_t i) {
    double sum = 0.0;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      sum += weights[rank] * widened(number_at<Number>(ranks[rank], i));
    }
    const double value = sum / static_cast<double>(ranks.size());
    if constexpr (std::is_same_v<Number, BFloat16>) {
      return rounded_to_bfloat16(static_cast<float>(value));
    } else {
      return static_cast<Number>(value);
    }
  });
}

Bytes largest(const std::vector<Bytes>& ranks) {
  return combined<std::int64_t>(ranks, [&](std::size_t i) {
    std::int64_t most = number_at<std::int64_t>(ranks.front(), i);
    for (const Bytes& bytes : ranks) most = std::max(most, number_at<std::int64_t>(bytes, i));
    return most;
  });
}

Bytes average(const std::string& dtype, std::vector<Bytes> ranks,
              const std::vector<double>& weights) {
  if (dtype == "F32") return mean<float>(ranks, weights);
  if (dtype == "F64") return mean<double>(ranks, weights);
  if (dtype == "BF16") return mean<BFloat16>(ranks, weights);
  if (dtype == "I64") return largest(ranks);
  return std::move(ranks.front());
}

/// Whether a piece belongs to a rank's place among its peers (`fc.weight/peer_0_sum`). No mean of
/// such pieces exists.
bool is_of_place(const TensorEntry& tensor) {
  return tensor.name.find("/peer_") != std::string::npos;
}

std::ptrdiff_t num_averaged(const SafetensorsFile& file) {
  return std::ssize(file.tensors()) - std::ranges::count_if(file.tensors(), is_of_place);
}

const TensorEntry& same_tensor(const SafetensorsFile& file, const TensorEntry& first) {
  const TensorEntry* found = file.find(first.name);
  if (found != nullptr && found->dtype == first.dtype && found->shape == first.shape) return *found;
  throw CheckpointError(concat(file.path(), ": ", first.name, found == nullptr ? " is missing" : "",
                               found == nullptr ? "" : " has another type or size",
                               "; states can be averaged only if all ranks have the same pieces"));
}

/// The ranks' weights in the mean of their parameters.
std::vector<double> weights_of(const std::vector<std::unique_ptr<SafetensorsFile>>& files) {
  std::vector<double> weights(files.size(), 1.0);
  for (std::size_t rank = 0; rank < files.size(); ++rank) {
    const TensorEntry* weight = files[rank]->find("run/model_weight");
    if (weight != nullptr && weight->num_bytes() == sizeof(double)) {
      files[rank]->read(*weight, &weights[rank]);
    }
  }
  return weights;
}

}  // namespace

void write_average(const std::string& checkpoint, int num_ranks, const std::string& path) {
  std::vector<std::unique_ptr<SafetensorsFile>> files;
  for (int rank = 0; rank < num_ranks; ++rank) {
    files.push_back(
        std::make_unique<SafetensorsFile>(concat(checkpoint, "/", rank_file_name(rank))));
    if (num_averaged(*files.back()) != num_averaged(*files.front())) {
      throw CheckpointError(concat(files.back()->path(), ": the ranks' states have other pieces"));
    }
  }
  const std::vector<double> weights = weights_of(files);
  const std::vector<double> ones(files.size(), 1.0);
  std::vector<Bytes> values;
  std::vector<TensorView> views;
  for (const TensorEntry& tensor : files.front()->tensors()) {
    if (is_of_place(tensor)) continue;
    std::vector<Bytes> ranks;
    for (const auto& file : files) {
      const TensorEntry& entry = same_tensor(*file, tensor);
      ranks.emplace_back(static_cast<std::size_t>(entry.num_bytes()));
      file->read(entry, ranks.back().data());
    }
    const bool is_parameter = tensor.name.find('/') == std::string::npos;
    values.push_back(average(tensor.dtype, std::move(ranks), is_parameter ? weights : ones));
    views.push_back({.name = tensor.name,
                     .dtype = tensor.dtype,
                     .shape = tensor.shape,
                     .data = values.back().data(),
                     .num_bytes = std::ssize(values.back())});
  }
  static_cast<void>(write_safetensors(path, std::move(views)));
}

}  // namespace gossamer
