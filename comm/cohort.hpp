#pragma once
// Processes that are members of a run only together, as the ranks of a node that shard one model.
//
// The address of such a process ends with its place, as " as 1/2 of NAME". So all that know the
// address know the cohort, and no message has to say it.
//
// Thread safety: values and functions without state.

#include <string>

namespace gossamer {

struct Cohort {
  /// The name tells cohorts apart, also earlier ones. Empty: the process is a cohort of its own.
  std::string name = {};
  /// The process's number from 0 to size - 1; each process has another one.
  int place = 0;
  int size = 1;
};

/// An address with the end that names the cohort. A cohort of one process adds nothing.
std::string with_cohort(const std::string& address, const Cohort& cohort);
/// The cohort that an address names.
Cohort cohort_of(const std::string& address);
/// Whether both processes are of one cohort of several.
bool are_mates(const std::string& one, const std::string& other);

}  // namespace gossamer
