#pragma once
// The Mesh of processes that are joined by TCP.
//
// Each of two processes opens a connection to the other process, and sends over the connection that
// it has opened. The kHello of each end has the numbers of both addresses (address_number()). A
// process refuses a connection that names another address than its own. The first text over a
// connection, after the greeting, is the address of the process that has opened it. When one of the
// two connections ends, both are closed. Each end sends at least a beat several times in
// `silence_s`.
//
// Thread safety: as Mesh. Errors: CommError from the constructor when no port can be had;
// std::runtime_error when the system gives no thread.

#include <cstdint>
#include <memory>
#include <string>

#include "base/log.hpp"
#include "comm/cohort.hpp"
#include "comm/elastic/mesh.hpp"
#include "comm/tcp/asio.hpp"
#include "comm/tcp/tls.hpp"

namespace gossamer::tcp {

struct MeshConfig {
  /// The interface at which the mesh listens, at a port that the system chooses.
  asio::ip::address address;
  /// Connections of other runs are refused.
  std::uint64_t run = 0;
  /// Null: connections are plain.
  std::unique_ptr<const TlsContext> tls = {};
  /// Seconds without a sign of life after which a process has ended. Seconds in which this process
  /// was stopped itself do not count.
  double silence_s = 10.0;
  /// Seconds until two processes are connected in both directions, after which one that is not has
  /// ended. They do not start at the same time.
  double meeting_s = 60.0;
  /// The processes with which this one is a member; its address says so.
  Cohort cohort = {};
  Logger logger = {};
};

std::unique_ptr<membership::Mesh> make_mesh(MeshConfig config);

/// Mesh::address() of a process that listens there. `word` tells it from others that have listened
/// there before.
std::string mesh_address(const asio::ip::tcp::endpoint& endpoint, const std::string& word);
/// A number for an address; different for different addresses.
std::uint64_t address_number(const std::string& address);
/// Throws FrameError for texts that are no such address.
asio::ip::tcp::endpoint mesh_endpoint(const std::string& address);

}  // namespace gossamer::tcp
