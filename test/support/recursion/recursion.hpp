#pragma once
// The oracle of all tests of training: the recursion of each algorithm, in double with whole
// matrices, all ranks at once. Written from the opening comments of the algorithms' files. Shares
// no code with the library except the topologies and the reading of options.
//
// Each algorithm has a file of this folder with one function, which makes the algorithm's step.
// What the steps have in common is in ranks.hpp, and the table of the functions in recursion.cpp.

#include "test/support/recursion/ranks.hpp"

namespace gossamer {

class Recursion {
 public:
  using Vectors = recursion::Vectors;
  using Gradients = recursion::Gradients;
  using Parameter = recursion::Parameter;
  using Setup = recursion::Setup;

  explicit Recursion(Setup setup);

  /// Makes one step, and returns the parameters after it.
  const Vectors& advance();

 private:
  recursion::Ranks ranks_;
  recursion::Algorithm step_;
  int num_steps_ = 0;
};

}  // namespace gossamer
