#pragma once
// The Mesh of members that are threads of one process. A connection ends when one of its two
// members closes its mesh or drops the other member, or when a test cuts the connection. Hooks are
// called on the thread that sends or ends.
//
// A member that starts after another member has closed does not learn of that end. So all members
// that begin a run start before any of them closes.
//
// Thread safety: any thread may call anything, except that no hook closes a mesh.

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "comm/elastic/mesh.hpp"

namespace gossamer::membership {

/// Joins the meshes.
class LocalNetwork {
 public:
  LocalNetwork() = default;
  LocalNetwork(const LocalNetwork&) = delete;
  LocalNetwork& operator=(const LocalNetwork&) = delete;
  virtual ~LocalNetwork() = default;

  void add(const std::string& address, Mesh::Hooks hooks);
  /// Ends all its connections. Its hooks are not called any more.
  void remove(const std::string& address);
  /// Tells both that they have met, unless they have been told before.
  virtual void watch(const std::string& from, const std::string& to);
  void send(const std::string& from, const std::string& to, const std::string& text);
  /// Ends the connection between two, and tells `b`.
  void drop(const std::string& a, const std::string& b);
  /// Ends it, and tells both.
  void cut(const std::string& a, const std::string& b);

 protected:
  virtual void tell_lost(const std::string& who, const std::string& lost);
  std::set<std::string> others_of(const std::string& address);

 private:
  /// Returns whether it was there.
  bool end(const std::string& a, const std::string& b);
  /// Empty: the member has no mesh.
  Mesh::Hooks hooks_of(const std::string& address);

  /// Held while hooks run, which may send: texts keep their order, and none comes after an end.
  std::recursive_mutex order_;
  std::mutex mutex_;
  std::map<std::string, Mesh::Hooks> hooks_;           // guarded by mutex_
  std::set<std::pair<std::string, std::string>> cut_;  // likewise
  std::set<std::pair<std::string, std::string>> met_;  // likewise
};

std::unique_ptr<Mesh> make_local_mesh(std::shared_ptr<LocalNetwork> network, std::string address);

}  // namespace gossamer::membership
