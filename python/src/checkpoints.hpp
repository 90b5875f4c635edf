#pragma once
// Checkpoints for Python: the files of core/checkpoint, which the program writes as well.

#include <utility>

#include <nanobind/nanobind.h>

#include "core/checkpoint/state_file.hpp"

namespace gossamer::python {

/// A copy of a rank's state, which a thread of Python may write while training goes on.
class PySnapshot {
 public:
  explicit PySnapshot(StateSnapshot snapshot) : snapshot_(std::move(snapshot)) {}
  PySnapshot(PySnapshot&&) = default;
  PySnapshot(const PySnapshot&) = delete;
  PySnapshot& operator=(const PySnapshot&) = delete;
  ~PySnapshot() = default;

  [[nodiscard]] const StateSnapshot& state() const { return snapshot_; }

 private:
  StateSnapshot snapshot_;
};

/// Adds the class Snapshot and the functions for folders of checkpoints.
void add_checkpoints(nanobind::module_& module);

}  // namespace gossamer::python
