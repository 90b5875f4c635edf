// NCCL itself: what can be said of it without a GPU, and the conformance suite with one.

#include "test/comm/conformance.hpp"
#include "test/gpu/gpu_test.hpp"
#include "test/gpu/nccl_or_null.hpp"

#include <memory>
#include <string>

#include "base/make_stream.hpp"
#include "comm/backends.hpp"
#include "comm/nccl/communicator.hpp"
#include "comm/nccl/library.hpp"

namespace gossamer {
namespace {

TEST(NcclLibrary, KnowsItsVersionWhereThereIsOne) {
  const auto nccl = nccl_or_null();
  if (nccl == nullptr) GTEST_SKIP() << "the loader finds no libnccl.so.2";
  EXPECT_TRUE(nccl->version().starts_with("2.")) << nccl->version();
}

using NcclLibraryOnGpu = GpuTest;

TEST_F(NcclLibraryOnGpu, ConformsWithOneRankPerGpu) {
  const auto nccl = nccl_or_null();
  if (nccl == nullptr) GTEST_SKIP() << "the loader finds no libnccl.so.2";
  for (int num_ranks = 1; num_ranks <= num_gpus(); num_ranks *= 2) {
    for (const ConformanceCase& test : conformance_cases()) {
      SCOPED_TRACE(std::string(test.name) + ", " + std::to_string(num_ranks) + " ranks");
      const auto body = [&test](Communicator& host, const World& world) {
        const auto library = load_nccl();
        const std::shared_ptr<Stream> stream = make_stream({DeviceType::kCuda, world.rank});
        const auto communicator = make_nccl_communicator(*library, host, stream, {60.0});
        test.body(*communicator);
        stream->synchronize();
        communicator->check();
        communicator->close();
        return 0;
      };
      EXPECT_EQ(launch("threads", {.num_ranks = num_ranks, .timeout_s = 60.0}, body), 0);
    }
  }
}

}  // namespace
}  // namespace gossamer
