#include "core/state/tensor_names.hpp"

#include <array>
#include <set>
#include <string_view>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

constexpr std::array<std::string_view, 6> kOwnBeginnings = {"run/",    "train/", "record/",
                                                            "random/", "ema/",   "scaler/"};

[[noreturn]] void refuse(std::string_view name, std::string_view why) {
  throw ConfigError(concat("the tensor ", name, " of the model ", why,
                           ", so two pieces of a saved state may get one name, allowed: another "
                           "name for one of them"));
}

}  // namespace

void check_tensor_names(std::span<const std::string> trained, std::span<const std::string> others) {
  std::set<std::string_view> all;
  for (const auto& names : {trained, others}) {
    for (const std::string& name : names) {
      if (!all.insert(name).second) refuse(name, "comes twice");
      for (const std::string_view beginning : kOwnBeginnings) {
        if (name.starts_with(beginning)) refuse(name, concat("begins with ", beginning));
      }
    }
  }
  const std::set<std::string_view> with_states(trained.begin(), trained.end());
  for (const std::string_view name : all) {
    for (auto end = name.find('/'); end != std::string_view::npos; end = name.find('/', end + 1)) {
      const std::string_view owner = name.substr(0, end);
      if (!with_states.contains(owner)) continue;
      refuse(name, concat("has the name of the parameter ", owner, " with a slash behind it"));
    }
  }
}

}  // namespace gossamer
