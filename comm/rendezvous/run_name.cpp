#include "comm/rendezvous/run_name.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/hmac.hpp"

namespace gossamer {
namespace {

using NamingClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kNamingSlice{200};

std::string fresh_word() { return to_hex(random_bytes(8)); }

class Naming {
 public:
  explicit Naming(const MeetingOptions& options)
      : options_(options),
        store_(*options.store),
        table_key_(options.run + "/name"),
        words_{.prefix = options.run + "/word/", .first = 1, .end = options.size},
        end_(NamingClock::now() + milliseconds(static_cast<std::int64_t>(1e3 * options.timeout_s))),
        notice_(options) {}

  std::string run() {
    const std::string fresh = fresh_word();
    while (true) {
      try {
        if (auto name = options_.rank == 0 ? lead(fresh) : name_of_first(fresh)) return *name;
      } catch (const StoreError& error) {
        if (is_over()) throw;
        begin_anew(error.reason());
      }
    }
  }

 private:
  [[nodiscard]] bool is_over() const { return NamingClock::now() >= end_; }

  void begin_anew(const std::string& reason) {
    if (!std::exchange(has_told_, true)) {
      options_.logger.warning(concat(reason, "; tries again"));
    }
    published_.clear();
    has_said_word_ = false;
    pause_ = kFirstPause;
    std::this_thread::sleep_for(kNamingSlice);
  }

  /// A turn of rank 0, which makes the name of `word`. Returns it when all have it.
  std::optional<std::string> lead(const std::string& word) {
    const std::string name = concat(options_.run, "-", word);
    if (!store_.wait_for_all(words_, kNamingSlice)) return look_for_missing(words_);
    const std::vector<std::string> found = store_.get_all(words_);
    if (found != published_) {
      publish(name, found);
      published_ = found;
    }
    const Store::Keys takers{.prefix = name + "/named/", .first = 1, .end = options_.size};
    if (!store_.wait_for_all(takers, kNamingSlice)) return look_for_missing(takers);
    return name;
  }

  void publish(const std::string& name, const std::vector<std::string>& words) {
    std::string table = name;
    std::optional<CommError> refusal;
    for (int rank = words_.first; rank < words_.end; ++rank) {
      const std::string& record = words.at(static_cast<std::size_t>(rank - words_.first));
      const auto word = opened(options_.secret, word_key(rank), record);
      if (!word && !refusal) refusal = not_signed(rank, word_key(rank), record);
      table += concat("\n", word.value_or(""));
    }
    store_.set(table_key_, sealed(options_.secret, table_key_, table));
    // The others learn from the table that the secrets differ.
    if (refusal) throw CommError(*refusal);
  }

  /// A turn of another rank, which calls itself `word`. Returns the name when rank 0 knows the
  /// word.
  std::optional<std::string> name_of_first(const std::string& word) {
    if (!std::exchange(has_said_word_, true)) {
      const std::string key = word_key(options_.rank);
      store_.set(key, sealed(options_.secret, key, word));
    }
    std::string record;
    try {
      record = store_.get(table_key_, kNamingSlice);
    } catch (const StoreError&) {
      throw;
    } catch (const CommError&) {
      return wait_for_first();
    }
    const auto text = opened(options_.secret, table_key_, record);
    if (!text) throw not_signed(0, table_key_, record);
    std::istringstream lines(*text);
    std::string name;
    std::getline(lines, name);
    std::string line;
    for (int rank = 1; rank <= options_.rank; ++rank) std::getline(lines, line);
    if (line != word) {
      // An earlier table.
      std::this_thread::sleep_for(pause_);
      pause_ = std::min(2 * pause_, kLongestPause);
      return wait_for_first();
    }
    store_.set(concat(name, "/named/", options_.rank), "yes");
    return name;
  }

  std::nullopt_t wait_for_first() {
    if (is_over()) throw_not_come(options_, options_.rank, {0});
    if (notice_.is_due()) notice_.tell({0});
    return std::nullopt;
  }

  std::nullopt_t look_for_missing(const Store::Keys& keys) {
    if (!is_over() && !notice_.is_due()) return std::nullopt;
    const std::vector<int> missing = missing_keys(store_, keys);
    if (missing.empty()) return std::nullopt;
    if (is_over()) throw_not_come(options_, options_.rank, missing);
    notice_.tell(missing);
    return std::nullopt;
  }

  [[nodiscard]] std::string word_key(int rank) const { return concat(words_.prefix, rank); }

  [[nodiscard]] CommError not_signed(int rank, const std::string& key,
                                     const std::string& record) const {
    return CommError({.rank = options_.rank, .peers = {rank}, .label = {.what = "start"}},
                     concat("what that rank has left in the store ",
                            why_not_opened(options_.secret, key, record)));
  }

  static constexpr milliseconds kFirstPause{10};
  static constexpr milliseconds kLongestPause{500};

  const MeetingOptions& options_;
  Store& store_;
  std::string table_key_;
  Store::Keys words_;
  NamingClock::time_point end_;
  WaitingNotice notice_;
  /// The words of the table that rank 0 has published last, as they stand in the store.
  std::vector<std::string> published_;
  bool has_said_word_ = false;
  bool has_told_ = false;
  milliseconds pause_ = kFirstPause;
};

}  // namespace

void name_attempt(MeetingOptions& options) {
  if (!options.has_attempts || options.store == nullptr) return;
  options.run = options.size == 1 ? concat(options.run, "-", fresh_word()) : Naming(options).run();
}

}  // namespace gossamer
