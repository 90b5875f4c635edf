// The cases of the conformance suite that add blocks.

#include "test/comm/conformance.hpp"
#include "test/comm/values.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/buffer.hpp"
#include "base/random.hpp"

namespace gossamer {
namespace {

template <class T>
void sum_everything(Communicator& communicator) {
  for (const std::int64_t numel : kSizes) {
    const std::vector<T> before = values_of<T>(own_world_rank(communicator), numel);
    const Values<T> mine(communicator, before);
    std::vector<T> expected(mine.size());
    for (const int member : communicator.world_ranks()) {
      for (std::int64_t i = 0; i < numel; ++i) {
        expected[static_cast<std::size_t>(i)] += value_of<T>(member, i, 0);
      }
    }
    const Values<T> sum(communicator, mine.size());
    communicator.all_reduce_sum(mine.block(), sum.block(), {}).wait();
    require(sum == expected, "sum of ", numel, " elements");
    require(mine == before, "the summands have changed");
  }
}

template <class T>
void reduce_parts(Communicator& communicator) {
  const int size = communicator.size();
  const int own = own_world_rank(communicator);
  for (const std::int64_t numel : kSizes) {
    // One part for each root.
    const Buffer memory(size * numel, DTypeOf<T>::kValue);
    const auto part = [&](int root) { return part_of(memory.block(), root * numel, numel); };
    std::vector<Request> requests;
    for (int root = 0; root < size; ++root) {
      std::ranges::copy(values_of<T>(own, numel, root), part(root).template as<T>().begin());
      requests.push_back(communicator.reduce_sum(part(root), root, {.owner = memory.owner()}));
    }
    for (Request& request : requests) request.wait();
    for (int root = 0; root < size; ++root) {
      std::vector<T> expected = values_of<T>(own, numel, root);
      for (const int member : communicator.world_ranks()) {
        if (root != communicator.rank() || member == own) continue;
        for (std::int64_t i = 0; i < numel; ++i) {
          expected[static_cast<std::size_t>(i)] += value_of<T>(member, i, root);
        }
      }
      require(std::ranges::equal(part(root).template as<T>(), expected), "part ", root, " of ",
              numel, " elements");
    }
  }
}

}  // namespace

void reduces_to_every_root(Communicator& communicator) {
  reduce_parts<float>(communicator);
  reduce_parts<double>(communicator);
  reduce_parts<std::int64_t>(communicator);
}

void sums_over_all(Communicator& communicator) {
  sum_everything<float>(communicator);
  sum_everything<double>(communicator);
  sum_everything<std::int64_t>(communicator);
}

namespace {

std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

/// Large enough for every way of adding, and no multiple of a number of ranks.
constexpr std::int64_t kLargeSum = 200'003;

/// Numbers whose sums in float32 depend on the order of adding.
std::vector<float> drawn_by(int member, std::size_t numel) {
  Random random(5, static_cast<std::uint64_t>(member));
  std::vector<float> drawn(numel);
  for (float& x : drawn) x = static_cast<float>(random.normal() * 1e3);
  return drawn;
}

/// `sum` is the sum over all members in double, but for rounding.
void require_near_sum(const Communicator& communicator, const std::vector<float>& sum) {
  std::vector<double> exact(sum.size());
  std::vector<double> largest(sum.size());
  for (int member = 0; member < communicator.size(); ++member) {
    const std::vector<float> drawn = drawn_by(member, sum.size());
    for (std::size_t i = 0; i < sum.size(); ++i) {
      exact[i] += drawn[i];
      largest[i] += std::abs(drawn[i]);
    }
  }
  for (std::size_t i = 0; i < sum.size(); ++i) {
    const double bound = 6e-8 * communicator.size() * largest[i];
    require(std::abs(sum[i] - exact[i]) <= bound, "element ", i, " of a sum is ", sum[i]);
  }
}

}  // namespace

void repeats_sums_bit_for_bit(Communicator& communicator) {
  for (const std::size_t numel : {std::size_t{5'003}, std::size_t{kLargeSum}}) {
    const Values<float> mine(communicator, drawn_by(communicator.rank(), numel));
    const Values<float> sum(communicator, numel);
    communicator.all_reduce_sum(mine.block(), sum.block(), {}).wait();
    const std::vector<float> first = sum.read();
    require_near_sum(communicator, first);
    const int repeats = numel < 10'000 ? 5 : 2;
    for (int repeat = 0; repeat < repeats; ++repeat) {
      const Values<float> again(communicator, numel);
      communicator.all_reduce_sum(mine.block(), again.block(), {}).wait();
      require(again == first, "repetition ", repeat, " gave another sum");
    }
    const std::string own = std::to_string(std::hash<std::string>()(bytes_of(first)));
    for (const std::string& other : communicator.all_gather(own)) {
      require(other == own, "two ranks have different sums");
    }
  }
}

void keeps_many_sums_in_flight(Communicator& communicator) {
  constexpr std::array<std::int64_t, 6> kNumels = {90'001, 3, 70'000, 0, 100'003, 65'536};
  std::vector<Values<float>> mine;
  std::vector<Values<float>> sums;
  std::vector<Values<float>> sums_of_sums;
  std::vector<Request> requests;
  for (std::size_t k = 0; k < kNumels.size(); ++k) {
    mine.emplace_back(communicator,
                      values_of<float>(communicator.rank(), kNumels[k], static_cast<int>(k)));
    sums.emplace_back(communicator, mine.back().size());
    sums_of_sums.emplace_back(communicator, mine.back().size());
  }
  for (std::size_t k = 0; k < kNumels.size(); ++k) {
    requests.push_back(communicator.all_reduce_sum(mine[k].block(), sums[k].block(), {}));
    requests.push_back(communicator.all_reduce_sum(sums[k].block(), sums_of_sums[k].block(),
                                                   {.after = requests.back().state()}));
  }
  Random random(4, static_cast<std::uint64_t>(communicator.rank()));
  random.shuffle(std::span(requests));
  for (Request& request : requests) request.wait();
  const auto size = static_cast<float>(communicator.size());
  for (std::size_t k = 0; k < kNumels.size(); ++k) {
    std::vector<float> expected(mine[k].size());
    for (int member = 0; member < communicator.size(); ++member) {
      for (std::int64_t i = 0; i < kNumels[k]; ++i) {
        expected[static_cast<std::size_t>(i)] += value_of<float>(member, i, static_cast<int>(k));
      }
    }
    require(sums[k] == expected, "sum ", k);
    for (float& x : expected) x *= size;
    require(sums_of_sums[k] == expected, "the sum of sum ", k);
  }
}

}  // namespace gossamer
