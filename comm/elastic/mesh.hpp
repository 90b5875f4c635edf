#pragma once
// Texts between the processes of a run: reports of members, announcements, and requests to join.
// Its connections are apart from the connections of training and outlive epochs, and each process
// watches over its peers by them.
//
// Protocol: start() once, then the other calls. The texts from one process to another arrive in
// order, all of them, until the connection ends. Then both learn of the end (Hooks::lost), and
// never hear of each other again: later texts are dropped. A process that is silent for too long
// has ended.
//
// Thread safety: any thread calls. Hooks run on a thread of the mesh, and must be quick.
// Errors: none after start(). A process that cannot be reached is lost.

#include <functional>
#include <string>

namespace gossamer::membership {

class Mesh {
 public:
  struct Hooks {
    std::function<void(const std::string& from, std::string text)> heard;
    /// A process that this one watches, or that has connected, is connected in both directions. Is
    /// called before the first `heard` of that process, or later.
    std::function<void(const std::string& address)> met = {};
    /// The connection with a process has ended.
    std::function<void(const std::string& address, const std::string& reason)> lost;
  };

  Mesh() = default;
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;
  virtual ~Mesh() = default;

  /// How others reach this process (Member::address).
  [[nodiscard]] virtual const std::string& address() const = 0;
  virtual void start(Hooks hooks) = 0;
  /// Opens a connection if there is none, and watches over it.
  virtual void watch(const std::string& address) = 0;
  /// watch(), and sends a text.
  virtual void send(const std::string& to, std::string text) = 0;
  /// Ends the connection with a process. The hook `lost` is not called here.
  virtual void drop(const std::string& address) = 0;
  /// Ends all connections. What was sent just before may be lost. Hooks are not called any more
  /// when it returns.
  virtual void close() = 0;
};

}  // namespace gossamer::membership
