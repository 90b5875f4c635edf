#pragma once
// What the links of a cluster can do: latency and bandwidth between two ranks of one node, and
// between nodes. Measured by link_bench.hpp, given by hand, or read from a file:
//
//   {"within":  {"latency_s": 1e-5, "bandwidth_bytes_per_s": 5e9},
//    "between": {"latency_s": 5e-5, "bandwidth_bytes_per_s": 3.125e9, "lost_s_per_byte": 2e-11},
//    "update_bytes_per_s": 2.7e9,
//    "compute_s": 0.1}
//
// One of `within` and `between` may be missing, if no two ranks talk that way. The last two and
// `lost_s_per_byte` are optional and 0 by default (no time is lost, or taken). The file may be JSON
// or YAML.

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "base/options.hpp"

namespace gossamer::apps {

/// One direction of a link; both directions work at once.
struct LinkSpeed {
  /// Seconds until the first byte is there.
  double latency_s = 0.0;
  /// Bytes per second; more than 0.
  double bandwidth = 1.0;
  /// Seconds of computing that each byte, going out or coming in, takes from the ranks at this end:
  /// copies and protocols need cores and memory. Between nodes the node's ranks share it.
  double lost_s_per_byte = 0.0;
  friend bool operator==(const LinkSpeed&, const LinkSpeed&) = default;
};

struct Links {
  /// Between a rank and the ranks of its own node; every rank has such a link to itself.
  std::optional<LinkSpeed> within = std::nullopt;
  /// Of a node to the other nodes; its ranks share it.
  std::optional<LinkSpeed> between = std::nullopt;
  /// Bytes of parameters that a rank mixes and updates in a second; 0: updates take no time.
  double update_bytes_per_s = 0.0;
  /// Seconds of forward and backward of a step, where the file says so.
  std::optional<double> compute_s = std::nullopt;
  friend bool operator==(const Links&, const Links&) = default;
};

/// What is assumed where nothing is known: 10 microseconds and 10 GB/s within a node, 50
/// microseconds and 10 Gbit/s between nodes.
Links assumed_links();

/// Takes links from a section. Throws ConfigError for what is missing, unknown or impossible.
Links read_links(const Options& section);
/// The same from a file.
Links read_links_file(const std::string& path);

/// What read_links() reads.
nlohmann::ordered_json to_json(const Links& links);

}  // namespace gossamer::apps
