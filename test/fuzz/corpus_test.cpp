// Short runs of the fuzz targets on changed copies of what is valid, with the same numbers every
// time. scripts/fuzz.sh looks longer, and where the code leads it.

#include "test/support/sanitized.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "comm/tcp/frame.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t count);
/// LLVMFuzzerTestOneInput of frames_fuzz.cpp.
extern "C" int fuzz_frames(const std::uint8_t* bytes, std::size_t count);

namespace gossamer {
namespace {

std::string tensor_file() {
  const std::string header =
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
      R"("b":{"dtype":"I64","shape":[2,1],"data_offsets":[4,20]},"__metadata__":{"k":"v"}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  return file + header + std::string(20, 'x');
}

std::string manifest_file() {
  return R"({"version":1,"step":7,"world_size":1,"run":{"a":"b"},)"
         R"("files":{"rank-00000.safetensors":{"bytes":1,"sha256":")" +
         std::string(64, '0') + R"("}}})";
}

std::string status_file() {
  return R"({"state":"running","step":7,"total_steps":9,"elapsed_s":1.5,"faults":["a fault"]})";
}

std::string timeline_file() {
  return R"({"otherData":{"about":"x"},"traceEvents":[)"
         R"({"ph":"X","cat":"step","ts":0,"dur":9,"pid":0,"tid":0,"args":{"step":1}},)"
         R"({"ph":"X","cat":"step","ts":9,"dur":9,"pid":0,"tid":0,"args":{"step":2}},)"
         R"({"ph":"X","cat":"exchange","ts":9,"dur":5,"pid":0,"tid":1,)"
         R"("args":{"step":2,"bucket":0,"peers":[1],"bytes":64}}]})";
}

/// Pieces that break naive readers.
const std::vector<std::string> kPieces = {"\"",
                                          "{",
                                          "}",
                                          "[",
                                          "]",
                                          ",",
                                          ":",
                                          "-1",
                                          "1e999",
                                          "../",
                                          "\\u0000",
                                          "4294967296",
                                          "null",
                                          "\\",
                                          "\"a\":{}",
                                          "NaN",
                                          "true",
                                          "[[[",
                                          "data_offsets",
                                          "9223372036854775807",
                                          "18446744073709551615",
                                          "1e308",
                                          "1e-320",
                                          "\\u001b[2J"};

std::string changed(std::string text, Random& random) {
  const auto place = [&] {
    return static_cast<std::size_t>(random.below(static_cast<std::int64_t>(text.size()) + 1));
  };
  for (std::int64_t change = random.below(4); change >= 0; --change) {
    switch (random.below(5)) {
      case 0:
        text.resize(place());
        break;
      case 1:
        if (!text.empty()) {
          text[place() % text.size()] ^= static_cast<char>(1 << random.below(8));
        }
        break;
      case 2:
        text.insert(place(), kPieces[static_cast<std::size_t>(
                                 random.below(static_cast<std::int64_t>(kPieces.size())))]);
        break;
      case 3:
        text.erase(place(), static_cast<std::size_t>(random.below(9)));
        break;
      default: {
        const std::size_t begin = place();
        text.insert(place(), text.substr(begin, static_cast<std::size_t>(random.below(40))));
      }
    }
  }
  return text;
}

TEST(Fuzz, SurvivesChangesOfValidFiles) {
  Random random(20'261'122);
  const std::vector<std::string> files = {tensor_file(), manifest_file(), status_file(),
                                          timeline_file()};
  const int num_inputs = kSanitized ? 1500 : 6000;
  for (int i = 0; i < num_inputs; ++i) {
    const std::string input = changed(files[static_cast<std::size_t>(i) % files.size()], random);
    // The target aborts, or a sanitizer does, if a reader trusts the input.
    EXPECT_EQ(
        LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size()),
        0);
  }
}

/// All that a peer says about two messages.
std::string frames() {
  using tcp::FrameKind;
  std::string bytes;
  const auto add = [&bytes](const tcp::Frame& frame) {
    const tcp::Header header = tcp::encode(frame);
    bytes.append(reinterpret_cast<const char*>(header.data()), header.size());
    bytes.append(frame.length, 'x');
  };
  add({.kind = FrameKind::kReady, .key = {.number = 1}, .offset = 200});
  add({.kind = FrameKind::kPiece, .key = {.number = 1}, .length = 4});
  add({.kind = FrameKind::kReady, .key = {.number = 7}, .offset = 8});
  add({.kind = FrameKind::kPiece, .key = {.number = 2}, .offset = 80, .length = 100});
  add({.kind = FrameKind::kPiece, .key = {.number = 2}, .length = 80});
  add({.kind = FrameKind::kBeat});
  return bytes;
}

TEST(Fuzz, SurvivesChangesOfFrames) {
  Random random(20'261'126);
  const std::string valid = frames();
  const int num_inputs = kSanitized ? 3000 : 12'000;
  for (int i = 0; i < num_inputs; ++i) {
    const std::string input = changed(valid, random);
    EXPECT_EQ(fuzz_frames(reinterpret_cast<const std::uint8_t*>(input.data()), input.size()), 0);
  }
}

}  // namespace
}  // namespace gossamer
