#include "comm/start/etcd_store.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include <curl/curl.h>
#include <nlohmann/json.hpp>
#include <openssl/evp.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/hmac.hpp"
#include "comm/start/etcd_address.hpp"

namespace gossamer {
namespace {

using std::chrono::milliseconds;
using EtcdClock = std::chrono::steady_clock;
using EtcdJson = nlohmann::json;

CommError etcd_error(std::string_view what) { return {{.label = {.what = "start"}}, what}; }

std::string to_base64(std::string_view bytes) {
  // OpenSSL writes a zero behind the text.
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');
  EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                  reinterpret_cast<const unsigned char*>(bytes.data()),
                  static_cast<int>(bytes.size()));
  text.pop_back();
  return text;
}

/// Throws CommError for text that is no base64.
std::string from_base64(const std::string& text) {
  std::string bytes(text.size() / 4 * 3, '\0');
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                   reinterpret_cast<const unsigned char*>(text.data()),
                                   static_cast<int>(text.size()));
  if (size < 0 || text.size() % 4 != 0) throw etcd_error("etcd's answer holds a broken value");
  // OpenSSL takes the padding for bytes.
  const std::size_t padding = text.size() - std::min(text.size(), text.find_last_not_of('=') + 1);
  bytes.resize(static_cast<std::size_t>(size) - std::min<std::size_t>(padding, 2));
  return bytes;
}

struct FreeCurl {
  void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

/// What a member has said to a request.
struct HttpAnswer {
  /// 0: nothing, and `text` is the reason.
  long status = 0;
  std::string text;
};

/// Makes requests over HTTP. Keeps its connections.
class HttpClient {
 public:
  HttpClient() {
    static const CURLcode kReady = curl_global_init(CURL_GLOBAL_DEFAULT);
    curl_.reset(kReady == CURLE_OK ? curl_easy_init() : nullptr);
    headers_.reset(curl_slist_append(nullptr, "Content-Type: application/json"));
    if (!curl_ || !headers_) throw etcd_error("libcurl cannot start");
    CURL* const curl = curl_.get();
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers_.get());
    curl_easy_setopt(curl, CURLOPT_PROXY, "");
    // Names that take long to find are no reason for a signal.
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    // Firewalls forget connections that are idle for minutes.
    curl_easy_setopt(curl, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(curl, CURLOPT_TCP_KEEPIDLE, 30L);
    curl_easy_setopt(curl, CURLOPT_TCP_KEEPINTVL, 10L);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, error_.data());
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &HttpClient::take);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &text_);
  }
  // libcurl points into it.
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient() = default;

  HttpAnswer post(const std::string& url, const std::string& body, milliseconds limit) {
    // A lost packet of a connection's begin is sent again after a second.
    constexpr milliseconds kConnectLimit{2'000};
    CURL* const curl = curl_.get();
    text_.clear();
    error_.front() = '\0';
    curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body.data());
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS,
                     static_cast<long>(std::min(limit, kConnectLimit).count()));
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(limit.count()));
    const CURLcode code = curl_easy_perform(curl);
    if (code != CURLE_OK) {
      return {0, error_.front() != '\0' ? error_.data() : curl_easy_strerror(code)};
    }
    HttpAnswer answer{0, std::move(text_)};
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &answer.status);
    return answer;
  }

 private:
  static std::size_t take(const char* data, std::size_t /*one*/, std::size_t size, void* to) {
    // etcd's values have at most 1.5 MB. A store is not trusted.
    constexpr std::size_t kMost = 16'000'000;
    auto& text = *static_cast<std::string*>(to);
    if (text.size() + size > kMost) return 0;
    text.append(data, size);
    return size;
  }

  std::unique_ptr<CURL, FreeCurl> curl_;
  std::unique_ptr<curl_slist, FreeCurl> headers_;
  std::array<char, CURL_ERROR_SIZE> error_{};
  std::string text_;
};

/// The members of etcd, of which any may answer.
class EtcdMembers {
 public:
  EtcdMembers(std::vector<std::string> addresses, std::function<void()> while_waiting)
      : addresses_(std::move(addresses)), while_waiting_(std::move(while_waiting)) {
    std::vector<std::string> names;
    for (const std::string& address : addresses_) names.push_back(without_password(address));
    name_ = concat("etcd at ", join(names, ","));
  }

  [[nodiscard]] const std::string& name() const { return name_; }

  /// The answer of a member. Asks each at least once, and until `end`. Throws CommError.
  EtcdJson ask(const std::string& path, const EtcdJson& request, EtcdClock::time_point end) {
    const std::string body = request.dump();
    while (true) {
      std::size_t num_refusals = 0;
      for (std::size_t i = 0; i < addresses_.size(); ++i) {
        if (auto answer = ask_current(path, body, end)) return *std::move(answer);
        if (is_refused_) ++num_refusals;
        current_ = (current_ + 1) % addresses_.size();
        if (while_waiting_) while_waiting_();
      }
      // It will not be right later. Something else than etcd may be at one address.
      if (num_refusals == addresses_.size()) {
        throw etcd_error(concat(name_, " refuses a request (", reason_, ")"));
      }
      if (EtcdClock::now() >= end) break;
      pause();
    }
    throw etcd_error(concat(name_, " cannot be reached (", reason_,
                            "): check that its members run, that the addresses are right, and that "
                            "no firewall is between"));
  }

  void pause(milliseconds time = milliseconds(50)) const {
    std::this_thread::sleep_for(time);
    if (while_waiting_) while_waiting_();
  }

 private:
  /// Nothing, and a reason, where another member may know more.
  std::optional<EtcdJson> ask_current(const std::string& path, const std::string& body,
                                      EtcdClock::time_point end) {
    // A member that is stopped takes connections, and one without the others answers after 7 s.
    constexpr milliseconds kLongest{5'000};
    constexpr milliseconds kShortest{500};
    const auto left = std::chrono::duration_cast<milliseconds>(end - EtcdClock::now());
    const std::string& address = addresses_[current_];
    const HttpAnswer answer =
        http_.post(address + path, body, std::clamp(left, kShortest, kLongest));
    is_refused_ = false;
    const auto because = [&](std::string_view what) {
      reason_ = concat(without_password(address), ": ", visible_line(what));
    };
    if (answer.status == 0) {
      because(answer.text);
      return std::nullopt;
    }
    auto json = EtcdJson::parse(answer.text, nullptr, /*allow_exceptions=*/false);
    if (answer.status == 200 && json.is_object()) return json;
    const bool has_reason = json.is_object() && json.contains("error") && json["error"].is_string();
    because(concat("status ", answer.status, ", ",
                   has_reason ? json["error"].get<std::string>() : "which is no answer of etcd"));
    // The request is wrong, or may not be made; not because the member has too much to do.
    constexpr long kTimeout = 408;
    constexpr long kTooMany = 429;
    is_refused_ = answer.status >= 400 && answer.status < 500 && answer.status != kTimeout &&
                  answer.status != kTooMany;
    return std::nullopt;
  }

  std::vector<std::string> addresses_;
  std::function<void()> while_waiting_;
  std::string name_;
  HttpClient http_;
  /// The one that has answered last.
  std::size_t current_ = 0;
  /// Why the last one that did not answer has not.
  std::string reason_;
  /// It has refused the request.
  bool is_refused_ = false;
};

/// What runs of gossamer have in etcd begins so.
constexpr std::string_view kEtcdFolder = "gossamer/";
std::string etcd_key(const std::string& key) { return to_base64(concat(kEtcdFolder, key)); }

/// The value in an answer to a question for one key; empty: it has not been set.
std::string value_in(const EtcdJson& range) {
  // etcd leaves out what is empty.
  const EtcdJson pairs = range.value("kvs", EtcdJson::array());
  return pairs.empty() ? "" : from_base64(pairs.at(0).value("value", ""));
}

class EtcdStore : public Store {
 public:
  EtcdStore(const std::vector<std::string>& addresses, milliseconds patience,
            const std::function<void()>& while_waiting)
      : members_(addresses, while_waiting), patience_(patience) {}

  void set(const std::string& key, std::string_view value) override {
    members_.ask("/v3/kv/put", {{"key", etcd_key(key)}, {"value", to_base64(value)}},
                 EtcdClock::now() + patience_);
  }

  std::string get(const std::string& key, milliseconds limit) override {
    std::string value;
    const bool is_there = asks_until(limit, [&](EtcdClock::time_point end) {
      const EtcdJson answer = members_.ask("/v3/kv/range", {{"key", etcd_key(key)}}, end);
      value = understood([&] { return value_in(answer); });
      return !value.empty();
    });
    if (is_there) return value;
    throw etcd_error(concat("nobody has set ", key, " in ", members_.name(), " within ",
                            shortest(static_cast<double>(limit.count()) / 1000.0), " s"));
  }

  /// A request whose answer is lost is made again. That is right for values that a key has once at
  /// most, as records and names of processes are: `expected` does not come back, so the change is
  /// not made twice, and where the value is `desired` already, it was made.
  std::string compare_and_set(const std::string& key, std::string_view expected,
                              std::string_view desired) override {
    const std::string name = etcd_key(key);
    EtcdJson compare = {{"key", name}};
    if (expected.empty()) {
      compare["target"] = "VERSION";
      compare["version"] = "0";
    } else {
      compare["target"] = "VALUE";
      compare["value"] = to_base64(expected);
    }
    const EtcdJson put = {{"requestPut", {{"key", name}, {"value", to_base64(desired)}}}};
    const EtcdJson look = {{"requestRange", {{"key", name}}}};
    const EtcdJson request = {{"compare", EtcdJson::array({compare})},
                              {"success", EtcdJson::array({put})},
                              {"failure", EtcdJson::array({look})}};
    const EtcdJson answer = members_.ask("/v3/kv/txn", request, EtcdClock::now() + patience_);
    return understood([&]() -> std::string {
      if (answer.value("succeeded", false)) return std::string(desired);
      return value_in(answer.at("responses").at(0).at("response_range"));
    });
  }

  bool wait_for_all(const Keys& keys, milliseconds limit) override {
    return asks_until(limit, [&](EtcdClock::time_point end) {
      EtcdJson request = below(keys.prefix);
      request["keys_only"] = true;
      const auto values = values_in(members_.ask("/v3/kv/range", request, end));
      return std::ranges::all_of(keys.list(),
                                 [&](const std::string& key) { return values.contains(key); });
    });
  }

  std::vector<std::string> get_all(const Keys& keys) override {
    auto values =
        values_in(members_.ask("/v3/kv/range", below(keys.prefix), EtcdClock::now() + patience_));
    std::vector<std::string> found;
    for (const std::string& key : keys.list()) found.push_back(std::move(values[key]));
    return found;
  }

  /// The place of a key of its own among all of the kind, in the order of their creation.
  std::int64_t draw_ticket(const std::string& key) override {
    const std::string own = concat(key, "/", to_hex(random_bytes(8)));
    const auto end = EtcdClock::now() + patience_;
    const EtcdJson put =
        members_.ask("/v3/kv/put", {{"key", etcd_key(own)}, {"value", to_base64("drawn")}}, end);
    EtcdJson request = below(key + "/");
    request["count_only"] = true;
    request["max_create_revision"] =
        understood([&] { return put.at("header").at("revision").get<std::string>(); });
    const EtcdJson range = members_.ask("/v3/kv/range", request, end);
    std::int64_t count = 0;
    parse_whole(understood([&] { return range.value("count", "1"); }), count);
    return count - 1;
  }

 private:
  /// Asks until `is_there`, which gets the end of the time, returns true, or the time is over. Asks
  /// ever less often, because all ranks wait like this. Returns whether it has.
  template <class IsThere>
  bool asks_until(milliseconds limit, const IsThere& is_there) {
    constexpr milliseconds kFirst{50};
    constexpr milliseconds kLongest{1'000};
    const auto end = EtcdClock::now() + limit;
    for (milliseconds time = kFirst;; time = std::min(2 * time, kLongest)) {
      if (is_there(end)) return true;
      const auto left = std::chrono::duration_cast<milliseconds>(end - EtcdClock::now());
      if (left <= milliseconds(0)) return false;
      members_.pause(std::min(time, left));
    }
  }

  /// A question for all keys that begin with `prefix`, which ends with a slash.
  static EtcdJson below(const std::string& prefix) {
    constexpr char kAfterSlash = '/' + 1;
    return {{"key", etcd_key(prefix)},
            {"range_end", etcd_key(prefix.substr(0, prefix.size() - 1) + kAfterSlash)}};
  }

  /// The values in an answer, by key.
  [[nodiscard]] std::map<std::string, std::string> values_in(const EtcdJson& range) const {
    std::map<std::string, std::string> values;
    understood([&] {
      for (const EtcdJson& pair : range.value("kvs", EtcdJson::array())) {
        const std::string key = from_base64(pair.at("key").get<std::string>());
        values[key.substr(std::min(key.size(), kEtcdFolder.size()))] =
            from_base64(pair.value("value", ""));
      }
      return std::string();
    });
    return values;
  }

  template <class Read>
  std::string understood(const Read& read) const {
    try {
      return read();
    } catch (const EtcdJson::exception&) {
      throw etcd_error(concat(members_.name(), " gives an answer that is none of etcd"));
    }
  }

  EtcdMembers members_;
  milliseconds patience_;
};

}  // namespace

std::shared_ptr<Store> open_etcd_store(const std::vector<std::string>& addresses,
                                       milliseconds patience,
                                       const std::function<void()>& while_waiting) {
  return std::make_shared<EtcdStore>(addresses, patience, while_waiting);
}

void remove_from_etcd(const std::vector<std::string>& addresses, const std::string& run,
                      milliseconds patience) {
  // From `gossamer/RUN/` up to what follows after all texts that begin so.
  constexpr char kAfterSlash = '/' + 1;
  EtcdMembers(addresses, {})
      .ask("/v3/kv/deleterange",
           {{"key", etcd_key(run + '/')}, {"range_end", etcd_key(run + kAfterSlash)}},
           EtcdClock::now() + patience);
}

}  // namespace gossamer
