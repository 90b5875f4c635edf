#pragma once
// Helpers for JSON, and for reading it from files that may hold anything.

#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "base/whole_text.hpp"

namespace gossamer::apps {

/// The value as JSON; null if there is none.
template <class T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

/// The value of a text; null for what is no JSON. Lists and objects more than 32 levels deep are
/// left out: the library writes and destroys deeper ones by recursion.
template <class Json>
Json json_or_null(const std::string& text) {
  constexpr int kMostDepth = 32;
  const auto keeps = [](int depth, typename Json::parse_event_t, const Json&) {
    return depth <= kMostDepth;
  };
  Json json = Json::parse(text, keeps, /*allow_exceptions=*/false);
  return json.is_discarded() ? Json(nullptr) : json;
}

/// The value of a file; null where there is no file, or no JSON in it. Throws as whole_text() does.
template <class Json>
Json json_file_or_null(const std::string& path) {
  return json_or_null<Json>(whole_text(path).value_or(""));
}

/// A text of a record, other values as JSON; empty if there is none.
inline std::string text_in(const nlohmann::ordered_json& record, const std::string& key) {
  if (!record.is_object() || !record.contains(key)) return "";
  return record[key].is_string() ? record[key].get<std::string>() : record[key].dump();
}

}  // namespace gossamer::apps
