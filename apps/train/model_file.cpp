#include "apps/train/safetensors.hpp"

#include <array>
#include <bit>
#include <cstdint>

#include <nlohmann/json.hpp>
#include <torch/types.h>

#include "apps/train/whole_file.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little endian");

std::string type_name(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat32:
      return "F32";
    case torch::kFloat64:
      return "F64";
    case torch::kBFloat16:
      return "BF16";
    case torch::kInt64:
      return "I64";
    default:
      throw CheckpointError(
          concat("a model with ", torch::toString(type),
                 " values cannot be saved, allowed: float32, float64, bfloat16, int64"));
  }
}

}  // namespace

void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::int64_t end = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::int64_t begin = end;
    end += static_cast<std::int64_t>(tensor.nbytes());
    header[name] = {{"dtype", type_name(tensor.scalar_type())},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", std::array{begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // values begin at a multiple of 8 bytes
  WholeFile file(path);
  const auto length = static_cast<std::uint64_t>(text.size());
  file.write(&length, sizeof length);
  file.write(text.data(), text.size());
  for (const auto& [name, tensor] : tensors) {
    const torch::Tensor values = tensor.detach().contiguous();
    file.write(values.data_ptr(), values.nbytes());
  }
  file.keep(/*sync=*/true);
}

}  // namespace gossamer::apps
