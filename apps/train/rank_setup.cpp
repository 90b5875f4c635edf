#include "apps/train/rank_setup.hpp"

#include <algorithm>
#include <set>
#include <string_view>

#include <torch/utils.h>

#include "apps/train/agreement.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

std::string sizes_of(const Samples& samples) {
  const SampleShape& shape = samples.shape();
  return concat(samples.size(), " samples of ", shape.channels, " x ", shape.height, " x ",
                shape.width, ", ", shape.num_outputs,
                samples.target() == TargetKind::kClasses ? " classes" : " numbers to predict");
}

/// Errors are about files that the path leads to, so they begin with its key.
Dataset load(const RunConfig& config) {
  try {
    return config.data->load(config.seed);
  } catch (const DataError& error) {
    const bool has_path = std::ranges::find(config.resolved, "data.path", &ResolvedValue::path) !=
                          config.resolved.end();
    if (!has_path) throw;
    throw DataError(concat("data.path: ", error.what()));
  }
}

}  // namespace

std::shared_ptr<const Dataset> SharedData::get(const RunConfig& config) {
  const std::lock_guard lock(mutex_);
  if (!data_ || seed_ != config.seed) {
    data_ = std::make_shared<const Dataset>(load(config));
    seed_ = config.seed;
  }
  return data_;
}

std::shared_ptr<const Dataset> load_together(Communicator& communicator, SharedData& data,
                                             const RunConfig& config) {
  auto loaded = all_or_none_slow(communicator, [&] { return data.get(config); });
  agree(communicator, "their data",
        concat("training: ", sizes_of(*loaded->train),
               "\nvalidation: ", sizes_of(*loaded->validation)));
  return loaded;
}

std::string validation_warning(const Dataset& data) {
  const auto train = data.train->labels();
  const auto validation = data.validation->labels();
  const std::set<std::int64_t> known(train.begin(), train.end());
  const std::set<std::int64_t> asked(validation.begin(), validation.end());
  constexpr std::string_view kAdvice =
      "; perhaps the samples are sorted by class: shuffle them, or give other validation samples";
  const auto is_new = [&known](std::int64_t label) { return !known.contains(label); };
  const auto num_new = std::ranges::count_if(validation, is_new);
  if (num_new > 0) {
    return concat(num_new, " of the ", validation.size(),
                  " validation samples have classes that no training sample has, as class ",
                  *std::ranges::find_if(asked, is_new), kAdvice);
  }
  // By chance, so many samples do not leave half of the classes out.
  const bool are_many = validation.size() >= 10 * known.size();
  if (asked.empty() || !are_many || 2 * asked.size() > known.size()) return "";
  return concat("the validation samples have ", asked.size(), " of the ", known.size(),
                " classes that the training samples have", kAdvice);
}

std::string lines_of(const std::vector<ResolvedValue>& values) {
  std::vector<std::string> lines;
  for (const ResolvedValue& value : values) {
    const bool is_of_host = value.path == "comm.interface" || value.path == "comm.secret_file";
    if (!is_of_host) lines.push_back(concat(value.path, ": ", value.value));
  }
  return join(lines, "\n");
}

std::string shared_lines(const RunConfig& config) {
  std::vector<ResolvedValue> values = config.resolved;
  std::erase_if(values, [](const ResolvedValue& one) { return one.path == "run.output_dir"; });
  return lines_of(values);
}

void seed_generator(std::uint64_t seed, const World& world, std::string_view backend) {
  const bool shared = backend == "threads";
  if (shared && world.rank != 0) return;
  // The generator is for models alone, so its numbers may begin anywhere.
  torch::manual_seed(seed + 1'000'003 * static_cast<std::uint64_t>(world.rank));
}

}  // namespace gossamer::apps
