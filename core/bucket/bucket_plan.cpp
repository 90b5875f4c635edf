#include "core/bucket/bucket_plan.hpp"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "base/buffer.hpp"
#include "base/error.hpp"
#include "base/first_difference.hpp"
#include "base/text.hpp"
#include "comm/hmac.hpp"

namespace gossamer {
namespace {

std::int64_t rounded(std::int64_t numel, DType dtype) {
  const std::int64_t unit = Buffer::kAlignment / size_of(dtype);
  return (numel + unit - 1) / unit * unit;
}

/// Whether two parameters may share a bucket.
bool fit(const ParameterInfo& a, const ParameterInfo& b) {
  if (a.dtype != b.dtype || (a.optimizer == nullptr) != (b.optimizer == nullptr)) return false;
  return a.optimizer == nullptr || same_kind(*a.optimizer, *b.optimizer);
}

/// Fills one open bucket per dtype and kind of optimizer, side by side. Buckets close in the order
/// in which they get full.
class Planner {
 public:
  Planner(std::span<const ParameterInfo> parameters, std::int64_t limit_bytes)
      : parameters_(parameters), limit_bytes_(limit_bytes) {}

  void add(std::int64_t index) {
    const ParameterInfo& info = parameters_[static_cast<std::size_t>(index)];
    BucketSpec& bucket = open_bucket(info);
    bucket.entries.push_back({index, bucket.numel});
    bucket.numel += rounded(info.numel(), bucket.dtype);
    if (bucket.bytes() < limit_bytes_) return;
    const auto place = open_.begin() + (&bucket - open_.data());
    closed_.push_back(std::move(*place));
    open_.erase(place);
  }

  void close_all() {
    for (BucketSpec& bucket : open_) closed_.push_back(std::move(bucket));
    open_.clear();
  }

  BucketPlan take() { return {std::move(closed_)}; }

 private:
  BucketSpec& open_bucket(const ParameterInfo& info) {
    const auto fitting = std::ranges::find_if(open_, [&](const BucketSpec& bucket) {
      const auto first = static_cast<std::size_t>(bucket.entries.front().parameter);
      return fit(parameters_[first], info);
    });
    if (fitting != open_.end()) return *fitting;
    return open_.emplace_back(
        BucketSpec{.dtype = master_of(info.dtype), .model_dtype = info.dtype});
  }

  std::span<const ParameterInfo> parameters_;
  std::int64_t limit_bytes_;
  std::vector<BucketSpec> open_;
  std::vector<BucketSpec> closed_;
};

/// Throws the ConfigError of two texts that differ: that of rank 0, and that of `rank`.
[[noreturn]] void refuse(std::string_view what, int rank, const std::string& text_of_first,
                         const std::string& text_of_rank) {
  const auto difference =
      first_difference(text_of_first, text_of_rank).value_or(LineDifference{"nothing", "nothing"});
  throw ConfigError(concat("the ranks differ in ", what, ": rank 0 has ", difference.one, ", rank ",
                           rank, " has ", difference.other));
}

}  // namespace

std::string list_of(std::vector<std::string> names) {
  constexpr std::size_t kMostNames = 10;
  const bool all = names.size() <= kMostNames;
  names.resize(std::min(names.size(), kMostNames));
  return concat(join(names, ", "), all ? "" : ", ...");
}

std::int64_t ParameterInfo::numel() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t BucketPlan::bytes() const {
  std::int64_t total = 0;
  for (const BucketSpec& bucket : buckets) total += bucket.bytes();
  return total;
}

BucketPlan plan_buckets(std::span<const ParameterInfo> parameters,
                        std::span<const std::int64_t> order, std::int64_t limit_bytes) {
  std::vector<bool> seen(parameters.size());
  Planner planner(parameters, limit_bytes);
  for (const std::int64_t index : order) {
    const auto place = static_cast<std::size_t>(index);
    if (index < 0 || place >= seen.size() || seen[place]) {
      throw std::logic_error(
          concat("plan_buckets: parameter ", index, " is unknown or comes twice"));
    }
    seen[place] = true;
    planner.add(index);
  }
  planner.close_all();
  for (std::size_t place = 0; place < seen.size(); ++place) {
    if (!seen[place]) planner.add(static_cast<std::int64_t>(place));
  }
  planner.close_all();
  return planner.take();
}

void check_matrices(std::span<const ParameterInfo> parameters, const Optimizer& optimizer) {
  std::vector<std::string> names;
  for (const ParameterInfo& info : parameters) {
    const Optimizer& own = info.optimizer ? *info.optimizer : optimizer;
    if (own.needs_matrices() && info.shape.size() < 2) names.push_back(info.name);
  }
  if (names.empty()) return;
  throw ConfigError(concat("the optimizer updates matrices alone, and these parameters are none: ",
                           list_of(std::move(names)),
                           "; give them another one in optimizer.groups, as with ",
                           "{vectors: true, optimizer: adamw}"));
}

std::string describe(const BucketPlan& plan, std::span<const ParameterInfo> parameters) {
  std::ostringstream out;
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    const BucketSpec& bucket = plan.buckets[b];
    std::vector<std::string> names;
    for (const BucketEntry& entry : bucket.entries) {
      names.push_back(parameters[static_cast<std::size_t>(entry.parameter)].name);
    }
    out << "  bucket " << b << ": " << bucket.numel << " " << name_of(bucket.dtype)
        << (bucket.has_master() ? concat(" (", name_of(bucket.model_dtype), " in the model)") : "")
        << " elements, " << human_bytes(static_cast<double>(bucket.bytes())) << ", " << names.size()
        << " parameters: " << join(names, " ") << "\n";
  }
  return out.str();
}

std::string describe(std::span<const ParameterInfo> parameters) {
  std::ostringstream out;
  for (const ParameterInfo& info : parameters) {
    out << info.name << " [" << join(info.shape, ", ") << "] " << name_of(info.dtype) << "\n";
  }
  return out.str();
}

std::string digest_of(std::string_view text) {
  // A code with a key that all know is a hash.
  return to_hex(hmac_sha256("text of a rank", text));
}

std::vector<std::string> gather_digests(Communicator& communicator, const std::string& text) {
  return communicator.all_gather(digest_of(text));
}

std::vector<std::string> gather_distinct(Communicator& communicator, const std::string& text) {
  const std::vector<std::string> digests = gather_digests(communicator, text);
  const auto is_first = [&digests](std::size_t rank) {
    return std::ranges::find(digests, digests[rank]) - digests.begin() ==
           static_cast<std::ptrdiff_t>(rank);
  };
  if (std::ranges::count(digests, digests.front()) == std::ssize(digests)) return {text};
  const bool sends = is_first(static_cast<std::size_t>(communicator.rank()));
  const std::vector<std::string> all = communicator.all_gather(sends ? text : "");
  std::vector<std::string> distinct;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (is_first(rank)) distinct.push_back(all[rank]);
  }
  return distinct;
}

void agree(Communicator& communicator, std::string_view what, const std::string& lines) {
  const std::vector<std::string> digests = gather_digests(communicator, lines);
  const auto different = std::ranges::find_if(
      digests, [&digests](const std::string& digest) { return digest != digests.front(); });
  if (different == digests.end()) return;
  const auto rank = static_cast<int>(different - digests.begin());
  const bool is_quoted = communicator.rank() == 0 || communicator.rank() == rank;
  const auto texts = communicator.all_gather(is_quoted ? lines : "");
  refuse(what, rank, texts.front(), texts[static_cast<std::size_t>(rank)]);
}

void agree_with_first(Communicator& communicator, std::string_view what, const std::string& lines) {
  const std::vector<std::string> digests = gather_digests(communicator, lines);
  const auto is_first = [&digests](const std::string& digest) { return digest == digests.front(); };
  if (std::ranges::all_of(digests, is_first)) return;
  const int rank = communicator.rank();
  const std::string first = communicator.all_gather(rank == 0 ? lines : "").front();
  if (!is_first(digests[static_cast<std::size_t>(rank)])) refuse(what, rank, first, lines);
}

}  // namespace gossamer
