#pragma once
// The program `gossamer` as a function, for a program of your own: the whole command line, with
// your own algorithms, topologies, optimizers and codecs beside those of the project. Link
// gossamer::program.
//
//   int main(int argc, char** argv) {
//     return gossamer::run_program(argc, argv, {.algorithms = kMyAlgorithms});
//   }

#include "core/algorithms/plug_ins.hpp"

namespace gossamer {

/// Runs the command that the arguments name, and returns the exit code (base/error.hpp). Says
/// errors itself, and throws nothing. The rows of `own` must outlive the call. Call it once, from
/// main(): it sets how the process keeps freed memory, and an environment variable of CUDA.
int run_program(int argc, char** argv, const PlugIns& own = {});

}  // namespace gossamer
