#include "python/src/module.hpp"

#include <array>
#include <regex>
#include <string_view>
#include <utility>

namespace gossamer::python {
namespace {

using Term = std::pair<std::string_view, std::string_view>;

/// What begins with another row's key stands before that row.
constexpr std::array kTerms = {
    Term{"train.nonfinite: skip", R"(options={"nonfinite": "skip"})"},
    Term{"train.grad_clip", R"(options={"grad_clip": "global", "grad_clip_norm": 1.0})"},
    Term{"fault.mode: survive", "initialize_dist(survive=True)"},
    Term{"fault.min_ranks", "initialize_dist(min_ranks=)"},
    Term{"another --run-id", "another initialize_dist(run_id=)"},
    Term{"comm.timeout_s", "initialize_dist(timeout_s=)"},
    Term{"comm.interface", "initialize_dist(interface=)"},
    Term{"comm.streams", "initialize_dist(streams=)"},
    Term{"comm.security=none", R"(initialize_dist(security="none"))"},
    Term{"the key comm.secret_file", "initialize_dist(secret=)"},
};

}  // namespace

std::string in_terms_of_python(std::string message) {
  for (const auto& [key, term] : kTerms) {
    for (std::size_t place = message.find(key); place != std::string::npos;
         place = message.find(key, place + term.size())) {
      message.replace(place, key.size(), term);
    }
  }
  // Line and column of a text that the package has written, and not the user.
  static const std::regex kPlace(R"(\boptions:\d+:\d+: )");
  return std::regex_replace(message, kPlace, "options: ");
}

}  // namespace gossamer::python
