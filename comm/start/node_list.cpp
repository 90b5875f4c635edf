#include "comm/start/node_list.hpp"

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {

std::string first_node(std::string_view list) {
  const auto refuse = [list]() -> ConfigError {
    return ConfigError(concat("the list of nodes ", visible_line(list),
                              " cannot be read, allowed: names with numbers in brackets, as "
                              "n[01-03,07],gpu1"));
  };
  std::string host;
  std::string_view rest = list;
  while (!rest.empty() && rest.front() != ',') {
    const char letter = rest.front();
    if (letter == ']') throw refuse();
    if (letter != '[') {
      host += letter;
      rest.remove_prefix(1);
      continue;
    }
    const std::size_t end = rest.find(']');
    if (end == std::string_view::npos) throw refuse();
    const std::string_view numbers = rest.substr(1, end - 1);
    const std::string_view first = numbers.substr(0, numbers.find_first_of("-,"));
    if (first.empty() || first.find_first_not_of("0123456789") != std::string_view::npos) {
      throw refuse();
    }
    host += first;
    rest.remove_prefix(end + 1);
  }
  if (host.empty()) throw refuse();
  return host;
}

}  // namespace gossamer
