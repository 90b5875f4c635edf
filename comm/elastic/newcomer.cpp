#include "comm/elastic/newcomer.hpp"

#include <utility>

namespace gossamer::membership {

Newcomer::Newcomer(std::string address, std::size_t first)
    : address_(std::move(address)), first_(first) {}

Actions Newcomer::find(const Epoch& latest) {
  if (latest.has(address_)) return learn(latest);
  const std::size_t num_members = latest.members.size();
  for (std::size_t i = 0; i < num_members; ++i) {
    const std::string& address = latest.members[(first_ + i) % num_members].address;
    if (lost_.contains(address)) continue;
    asked_ = address;
    return {Ask{address}};
  }
  return {Leave{Leave::Why::kTooFew}};
}

Actions Newcomer::lose(const std::string& address) {
  lost_.insert(address);
  if (address != asked_) return {};
  return {Look{}};
}

Actions Newcomer::learn(const Epoch& epoch) const {
  if (!epoch.has(address_)) return {};
  return {Adopt{epoch}};
}

std::ostream& operator<<(std::ostream& out, const Newcomer& newcomer) {
  out << newcomer.address_ << " has asked " << newcomer.asked_ << ", first " << newcomer.first_
      << "; lost:";
  for (const std::string& address : newcomer.lost_) out << ' ' << address;
  out << "; asked by:";
  for (const std::string& address : newcomer.asking_) out << ' ' << address;
  return out;
}

}  // namespace gossamer::membership
