#pragma once
// Helpers for JSON output.

#include <optional>

#include <nlohmann/json.hpp>

namespace gossamer::apps {

/// The value as JSON; null if there is none.
template <class T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

}  // namespace gossamer::apps
