#include "comm/elastic/local_mesh.hpp"

#include <algorithm>

namespace gossamer::membership {
namespace {

class LocalMesh : public Mesh {
 public:
  LocalMesh(std::shared_ptr<LocalNetwork> network, std::string address)
      : network_(std::move(network)), address_(std::move(address)) {}
  ~LocalMesh() override { LocalMesh::close(); }

  [[nodiscard]] const std::string& address() const override { return address_; }
  void start(Hooks hooks) override { network_->add(address_, std::move(hooks)); }
  void watch(const std::string& address) override { network_->watch(address_, address); }
  void send(const std::string& to, std::string text) override {
    network_->send(address_, to, text);
  }
  void drop(const std::string& address) override { network_->drop(address_, address); }
  void close() override { network_->remove(address_); }

 private:
  std::shared_ptr<LocalNetwork> network_;
  std::string address_;
};

}  // namespace

void LocalNetwork::add(const std::string& address, Mesh::Hooks hooks) {
  const std::lock_guard lock(mutex_);
  hooks_[address] = std::move(hooks);
}

void LocalNetwork::remove(const std::string& address) {
  const std::lock_guard order(order_);
  {
    const std::lock_guard lock(mutex_);
    if (hooks_.erase(address) == 0) return;
  }
  for (const std::string& other : others_of(address)) cut(address, other);
}

void LocalNetwork::watch(const std::string& from, const std::string& to) {
  const std::lock_guard order(order_);
  {
    const std::lock_guard lock(mutex_);
    const auto pair = std::minmax(from, to);
    if (from == to || cut_.contains(pair) || !hooks_.contains(from) || !hooks_.contains(to)) return;
    if (!met_.insert(pair).second) return;
  }
  if (const Mesh::Hooks hooks = hooks_of(from); hooks.met) hooks.met(to);
  if (const Mesh::Hooks hooks = hooks_of(to); hooks.met) hooks.met(from);
}

void LocalNetwork::send(const std::string& from, const std::string& to, const std::string& text) {
  const std::lock_guard order(order_);
  {
    const std::lock_guard lock(mutex_);
    if (from == to || cut_.contains(std::minmax(from, to))) return;
  }
  if (const Mesh::Hooks hooks = hooks_of(to); hooks.heard) hooks.heard(from, text);
}

void LocalNetwork::drop(const std::string& a, const std::string& b) {
  const std::lock_guard order(order_);
  if (end(a, b)) tell_lost(b, a);
}

void LocalNetwork::cut(const std::string& a, const std::string& b) {
  const std::lock_guard order(order_);
  if (!end(a, b)) return;
  tell_lost(a, b);
  tell_lost(b, a);
}

void LocalNetwork::tell_lost(const std::string& who, const std::string& lost) {
  if (const Mesh::Hooks hooks = hooks_of(who); hooks.lost) hooks.lost(lost, "it has ended");
}

bool LocalNetwork::end(const std::string& a, const std::string& b) {
  const std::lock_guard lock(mutex_);
  return cut_.insert(std::minmax(a, b)).second;
}

Mesh::Hooks LocalNetwork::hooks_of(const std::string& address) {
  const std::lock_guard lock(mutex_);
  const auto found = hooks_.find(address);
  return found == hooks_.end() ? Mesh::Hooks() : found->second;
}

std::set<std::string> LocalNetwork::others_of(const std::string& address) {
  const std::lock_guard lock(mutex_);
  std::set<std::string> others;
  for (const auto& [other, hooks] : hooks_) {
    if (other != address) others.insert(other);
  }
  return others;
}

std::unique_ptr<Mesh> make_local_mesh(std::shared_ptr<LocalNetwork> network, std::string address) {
  return std::make_unique<LocalMesh>(std::move(network), std::move(address));
}

}  // namespace gossamer::membership
