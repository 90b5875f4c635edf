#pragma once
// A Store is the place where ranks that cannot reach each other yet leave short records: keys and
// values that all of them see. Ranks ask it when they start (comm/rendezvous/meeting.hpp), and
// never in a step.
//
// Protocol: set() makes a value visible to all. get() waits for a value. compare_and_set() changes
// a value in one indivisible step, so of several ranks that try the same change one succeeds.
// Values are not empty: an empty text stands for a key that has not been set.
//
// A store may be far away. So what concerns all ranks is one question, where the store can answer
// it. wait_for_all() and get_all() of this class ask for one key after the other. Stores that can
// do better override them.
//
// A store is not trusted: any process that reaches it can read and change it. Records therefore
// carry a signature (comm/rendezvous/meeting.hpp).
//
// Thread safety: one thread at a time. Errors: CommError when the store cannot be reached, and when
// the time is over.

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"

namespace gossamer {

/// The connection with the store has ended. The next call makes another one: the store may be back,
/// with its memory or without.
class StoreError : public CommError {
 public:
  using CommError::CommError;
};

class Store {
 public:
  /// The keys `prefix` + `first`, ..., `prefix` + (`end` - 1).
  struct Keys {
    std::string prefix;
    int first = 0;
    int end = 0;

    [[nodiscard]] std::vector<std::string> list() const;
  };

  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  virtual void set(const std::string& key, std::string_view value) = 0;
  /// The value of `key`. Waits up to `limit` until a process sets it.
  virtual std::string get(const std::string& key, std::chrono::milliseconds limit) = 0;
  /// Sets `key` to `desired` if its value is `expected`; an empty `expected` means that it has
  /// not been set. Returns the value that the key has then.
  virtual std::string compare_and_set(const std::string& key, std::string_view expected,
                                      std::string_view desired) = 0;

  /// Waits up to `limit` until all keys have values. Returns whether they have.
  virtual bool wait_for_all(const Keys& keys, std::chrono::milliseconds limit);
  /// The values of keys that all have one.
  virtual std::vector<std::string> get_all(const Keys& keys);
  /// How many have called it before with this key, as far as the store counts; else 0.
  virtual std::int64_t draw_ticket(const std::string& /*key*/) { return 0; }
};

}  // namespace gossamer
