#pragma once
// Runs of ranks that go on when others are lost, on processors and on devices.

#include "test/comm/elastic_ranks.hpp"
#include "test/core/test_device.hpp"
#include "test/support/fake_nccl.hpp"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/options.hpp"
#include "comm/session.hpp"

namespace gossamer {

/// The parameters of a test: backends, and in the last two the parameters are in a device's memory.
/// `nccl`: ranks that are threads, and NCCL over its stand-in. `staged`: tcp, with staging buffers.
inline const std::vector<std::string> kSurvivorRuns = {"threads", "tcp", "nccl", "staged"};

/// Makes a rank's device over a communicator of its session.
using MakeDevice = std::function<TestDevice(Communicator& communicator)>;

/// What a rank does.
using Life = std::function<void(Session& session, const MakeDevice& make_device)>;

/// Calls `live` for each rank, on a thread of its own. `kind`: one of kSurvivorRuns. `survives`:
/// false for a run that would end with the first loss.
inline void run_survivors(std::string_view kind, int size, const Life& live, bool survives = true) {
  LaunchOptions options{.timeout_s = 60.0, .log_level = LogLevel::kOff};
  options.fault.survives = survives;
  FakeNcclHub hub;
  const Where where = kind == "nccl"     ? Where::kNccl
                      : kind == "staged" ? Where::kDevice
                                         : Where::kHost;
  const MakeDevice make_device = [&hub, where](Communicator& communicator) {
    return TestDevice(where, communicator, hub);
  };
  const bool are_threads = kind == "threads" || kind == "nccl";
  elastic_test::run_sessions(are_threads ? "threads" : "tcp", size, options,
                             [&](Session& session) { live(session, make_device); });
}

}  // namespace gossamer
