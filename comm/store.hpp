#pragma once
// A Store is the place where ranks that cannot reach each other yet leave short records: keys and
// values that all of them see. Ranks ask it when they start (comm/meeting.hpp), and never in a
// step.
//
// Protocol: set() makes a value visible to all. get() waits for a value. compare_and_set() changes
// a value in one indivisible step, so of several ranks that try the same change one succeeds.
// Values are not empty: an empty text stands for a key that nobody has set.
//
// A store is not trusted: whoever reaches it can read and change it. Records therefore carry a
// signature (comm/meeting.hpp).
//
// Thread safety: one thread at a time. Errors: CommError when the store cannot be reached, or when
// the time is over.

#include <chrono>
#include <string>
#include <string_view>

namespace gossamer {

class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  virtual void set(const std::string& key, std::string_view value) = 0;
  /// The value of `key`. Waits up to `limit` for somebody to set it.
  virtual std::string get(const std::string& key, std::chrono::milliseconds limit) = 0;
  /// Sets `key` to `desired` if its value is `expected`; an empty `expected` means that nobody has
  /// set it. Returns the value that the key has then.
  virtual std::string compare_and_set(const std::string& key, std::string_view expected,
                                      std::string_view desired) = 0;
};

}  // namespace gossamer
