#pragma once

#include <optional>

#include <nlohmann/json.hpp>

namespace gossamer::apps {

/// What may be missing is null in JSON.
template <class T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

}  // namespace gossamer::apps
