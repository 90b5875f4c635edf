#pragma once
// How ranks of the backend `threads` go on when others die (comm/elastic/elastic_session.hpp).
// Their mesh and their store lie in the memory of the process. The members of an epoch meet in a
// ThreadGroup of their own.
//
// A rank dies when its session goes; the process lives on. No rank can join.

#include "comm/options.hpp"
#include "comm/session.hpp"

namespace gossamer {

/// The sessions of all ranks that begin the run.
Sessions open_elastic_threads(const LaunchOptions& options);

}  // namespace gossamer
