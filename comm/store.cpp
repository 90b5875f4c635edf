#include "comm/store.hpp"

#include <algorithm>

#include "base/text.hpp"

namespace gossamer {

using std::chrono::milliseconds;

std::vector<std::string> Store::Keys::list() const {
  std::vector<std::string> names;
  for (int i = first; i < end; ++i) names.push_back(concat(prefix, i));
  return names;
}

bool Store::wait_for_all(const Keys& keys, milliseconds limit) {
  const auto begin = std::chrono::steady_clock::now();
  for (const std::string& key : keys.list()) {
    const auto passed =
        std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
    try {
      static_cast<void>(get(key, std::max(limit - passed, milliseconds(0))));
    } catch (const StoreError&) {
      throw;
    } catch (const CommError&) {
      // A store that gives up early has another reason than the time. Clocks differ a little.
      if (std::chrono::steady_clock::now() - begin < limit * 9 / 10) throw;
      return false;
    }
  }
  return true;
}

std::vector<std::string> Store::get_all(const Keys& keys) {
  // The value is there. Some stores give no answer without any time.
  constexpr milliseconds kShort{1'000};
  std::vector<std::string> values;
  for (const std::string& key : keys.list()) values.push_back(get(key, kShort));
  return values;
}

}  // namespace gossamer
