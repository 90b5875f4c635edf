#include "comm/cohort.hpp"

#include <string_view>

#include "base/text.hpp"

namespace gossamer {
namespace {

constexpr std::string_view kAs = " as ";
constexpr std::string_view kOf = " of ";

}  // namespace

std::string with_cohort(const std::string& address, const Cohort& cohort) {
  if (cohort.size < 2) return address;
  return concat(address, kAs, cohort.place, "/", cohort.size, kOf, cohort.name);
}

Cohort cohort_of(const std::string& address) {
  const std::size_t as = address.find(kAs);
  if (as == std::string::npos) return {};
  const std::string_view text = std::string_view(address).substr(as + kAs.size());
  const std::size_t slash = text.find('/');
  const std::size_t of = text.find(kOf);
  Cohort cohort;
  if (slash == std::string_view::npos || of == std::string_view::npos || of < slash ||
      !parse_whole(text.substr(0, slash), cohort.place) ||
      !parse_whole(text.substr(slash + 1, of - slash - 1), cohort.size) || cohort.place < 0 ||
      cohort.place >= cohort.size) {
    return {};
  }
  cohort.name = text.substr(of + kOf.size());
  return cohort;
}

bool are_mates(const std::string& one, const std::string& other) {
  const Cohort cohort = cohort_of(one);
  return cohort.size > 1 && cohort.name == cohort_of(other).name;
}

}  // namespace gossamer
