#pragma once
// The links of a cluster: latency and bandwidth between two ranks of one node, and between nodes.
// link_bench.hpp measures them, the user gives them, or a file has them:
//
//   {"within":  {"latency_s": 1e-5, "bandwidth_bytes_per_s": 5e9},
//    "between": {"latency_s": 5e-5, "bandwidth_bytes_per_s": 3.125e9, "lost_s_per_byte": 2e-11},
//    "update_bytes_per_s": 2.7e9,
//    "compute_s": 0.1,
//    "backend": "tcp"}
//
// `within` or `between` may be missing if no two ranks talk that way. `update_bytes_per_s`,
// `compute_s` and `lost_s_per_byte` are optional; they default to 0, nothing and 0: updates take no
// time, the file does not say, and no time is lost. `backend` is `threads`, `mpi`, `tcp`, or not
// known. A measured link of the backend `tcp` also has `streams` and `loss_rate`, which no
// prediction depends on. A cluster in several regions has two more keys (regions.hpp). The file may
// be JSON or YAML.

#include <cstdint>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "apps/lab/plan/regions.hpp"
#include "base/options.hpp"

namespace gossamer::apps {

/// The speed of one direction of a link; both directions work at the same time.
struct LinkSpeed {
  /// Seconds until the first byte arrives.
  double latency_s = 0.0;
  /// Bytes per second; more than 0.
  double bandwidth = 1.0;
  /// Seconds of computing time that each byte, outgoing or incoming, takes from the ranks at this
  /// end of the link: copies and protocols need cores and memory. Between nodes, the node's ranks
  /// share this loss.
  double lost_s_per_byte = 0.0;
  /// Connections of TCP that shared the bytes when the link was measured, if that is known.
  std::optional<std::int64_t> num_streams = std::nullopt;
  /// The part of all segments that TCP had to send again, 0 to 1, if that is known.
  std::optional<double> loss_rate = std::nullopt;
  friend bool operator==(const LinkSpeed&, const LinkSpeed&) = default;
};

struct Links {
  /// The link between a rank and the ranks of its own node. Every rank has such a link to itself.
  std::optional<LinkSpeed> within = std::nullopt;
  /// The link of a node to the other nodes. The node's ranks share it.
  std::optional<LinkSpeed> between = std::nullopt;
  /// Bytes of parameters that a rank mixes and updates per second; 0: updates take no time.
  double update_bytes_per_s = 0.0;
  /// Seconds of forward and backward of a step, if the file says so.
  std::optional<double> compute_s = std::nullopt;
  /// The backend of the run; empty: not known.
  std::string backend = {};
  Regions regions = {};

  /// True: a message between nodes leaves after its receiver has said that it is ready, so it costs
  /// one more latency (comm/tcp/frame.hpp).
  [[nodiscard]] bool receivers_say_ready() const { return backend == "tcp"; }
  friend bool operator==(const Links&, const Links&) = default;
};

/// The links to assume if nothing is known: 10 microseconds and 10 GB/s within a node, 50
/// microseconds and 10 Gbit/s between nodes.
Links assumed_links();

/// Reads links from a section. Throws ConfigError for missing, unknown or impossible values.
Links read_links(const Options& section);
/// Reads links from a file. Throws as read_links() does.
Links read_links_file(const std::string& path);

/// Writes links as read_links() reads them.
nlohmann::ordered_json to_json(const Links& links);
nlohmann::ordered_json to_json(const LinkSpeed& speed);

}  // namespace gossamer::apps
