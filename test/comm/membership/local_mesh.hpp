#pragma once
// A Mesh of processes that are threads of one process, whose connections tests break. Hooks are
// called on the thread that sends or breaks.

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "comm/membership/mesh.hpp"

namespace gossamer::membership {

/// Joins the meshes. Thread safe.
class LocalNetwork {
 public:
  void add(const std::string& address, Mesh::Hooks hooks) {
    const std::lock_guard lock(mutex_);
    hooks_[address] = std::move(hooks);
  }
  void remove(const std::string& address) {
    {
      const std::lock_guard lock(mutex_);
      if (hooks_.erase(address) == 0) return;
    }
    for (const std::string& other : others_of(address)) cut(address, other);
  }
  /// Ends the connection between two processes, and tells both that are there and not stopped.
  void cut(const std::string& a, const std::string& b) {
    {
      const std::lock_guard lock(mutex_);
      if (!cut_.insert(std::minmax(a, b)).second) return;
    }
    tell_lost(a, b);
    tell_lost(b, a);
  }
  /// The process does nothing for a while, so the others lose it.
  void stop(const std::string& address) {
    {
      const std::lock_guard lock(mutex_);
      stopped_.insert(address);
    }
    for (const std::string& other : others_of(address)) cut(address, other);
  }
  /// It goes on, and learns that it has lost all others.
  void go_on(const std::string& address) {
    {
      const std::lock_guard lock(mutex_);
      stopped_.erase(address);
    }
    for (const std::string& other : others_of(address)) tell_lost(address, other);
  }
  void send(const std::string& from, const std::string& to, const std::string& text) {
    const std::unique_lock order(order_);
    Mesh::Hooks hooks;
    {
      const std::lock_guard lock(mutex_);
      const auto found = hooks_.find(to);
      if (found == hooks_.end() || from == to || cut_.contains(std::minmax(from, to))) return;
      hooks = found->second;
    }
    hooks.heard(from, text);
  }

 private:
  std::set<std::string> others_of(const std::string& address) {
    const std::lock_guard lock(mutex_);
    std::set<std::string> others;
    for (const auto& [other, hooks] : hooks_) {
      if (other != address) others.insert(other);
    }
    return others;
  }

  void tell_lost(const std::string& who, const std::string& lost) {
    Mesh::Hooks hooks;
    {
      const std::lock_guard lock(mutex_);
      const auto found = hooks_.find(who);
      if (found == hooks_.end() || stopped_.contains(who)) return;
      hooks = found->second;
    }
    hooks.lost(lost, "the test has cut it");
  }

  /// Texts of one sender keep their order.
  std::recursive_mutex order_;
  std::mutex mutex_;
  std::map<std::string, Mesh::Hooks> hooks_;           // guarded by mutex_
  std::set<std::pair<std::string, std::string>> cut_;  // likewise
  std::set<std::string> stopped_;                      // likewise
};

class LocalMesh : public Mesh {
 public:
  LocalMesh(LocalNetwork& network, std::string address)
      : network_(network), address_(std::move(address)) {}
  ~LocalMesh() override { LocalMesh::close(); }

  [[nodiscard]] const std::string& address() const override { return address_; }
  void start(Hooks hooks) override { network_.add(address_, std::move(hooks)); }
  void watch(const std::string& /*address*/) override {}
  void send(const std::string& to, std::string text) override { network_.send(address_, to, text); }
  void drop(const std::string& address) override { network_.cut(address_, address); }
  void close() override { network_.remove(address_); }

 private:
  LocalNetwork& network_;
  std::string address_;
};

}  // namespace gossamer::membership
