#pragma once
// The mean of the states of all ranks of a checkpoint, from which a run with any number of ranks
// can continue.
//
// Errors: CheckpointError.

#include <string>

namespace gossamer {

/// Writes the file `path`, which has the form of a rank's file. Values of floating-point types are
/// means over the ranks, added in double in the order of the ranks. In the mean of the parameters,
/// the ranks have the weights of push-sum and of asynchronous ranks (run/model_weight), which sum
/// to the number of ranks. Of integers the file has the largest, and of bytes the bytes of rank 0.
/// Pieces named `.../peer_...` belong to a rank's place among its peers, and are left out. Throws
/// CheckpointError if the ranks' states differ otherwise in names, types or sizes.
void write_average(const std::string& checkpoint, int num_ranks, const std::string& path);

}  // namespace gossamer
