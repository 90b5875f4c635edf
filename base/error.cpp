#include "base/error.hpp"

#include <filesystem>
#include <ios>
#include <utility>

#include "base/text.hpp"

namespace gossamer {
namespace {

std::string describe(const CommError::Context& context, std::string_view what) {
  std::string text = context.rank < 0 ? "" : concat("rank ", context.rank, ": ");
  text += to_string(context.label);
  if (!context.peers.empty()) {
    text += concat(" with rank", context.peers.size() > 1 ? "s " : " ", join(context.peers, ", "));
  }
  return concat(text, ": ", what);
}

}  // namespace

ConfigError::ConfigError(std::string_view where, std::string_view key, std::string_view what)
    : std::runtime_error(key.empty() ? concat(where, ": ", what)
                                     : concat(where, ": ", key, ": ", what)) {}

std::string to_string(const OpLabel& label) {
  std::string text(label.what);
  if (label.bucket >= 0) text += concat(" of bucket ", label.bucket);
  if (label.round >= 0) text += concat(label.bucket >= 0 ? ", round " : " of round ", label.round);
  return text;
}

CommError::CommError(Context context, std::string_view what)
    : std::runtime_error(describe(context, what)), context_(std::move(context)), reason_(what) {}

ExitCode exit_code_of(const std::exception& error) {
  const auto is = [&error](auto* kind) { return dynamic_cast<decltype(kind)>(&error) != nullptr; };
  if (is(static_cast<const ConfigError*>(nullptr))) return ExitCode::kConfig;
  if (is(static_cast<const DataError*>(nullptr))) return ExitCode::kData;
  if (is(static_cast<const CheckpointError*>(nullptr))) return ExitCode::kCheckpoint;
  // A name that is too long, or a folder or file that may not be read: no fault of the program.
  if (is(static_cast<const std::filesystem::filesystem_error*>(nullptr)) ||
      is(static_cast<const std::ios_base::failure*>(nullptr))) {
    return ExitCode::kCheckpoint;
  }
  if (const auto* comm = dynamic_cast<const CommError*>(&error)) return comm->context().code;
  if (is(static_cast<const NonFiniteError*>(nullptr))) return ExitCode::kNonFinite;
  return ExitCode::kInternal;
}

}  // namespace gossamer
