// Folders of checkpoints: the manifest, what verification finds, and how two of them compare.

#include "test/apps/folder.hpp"
#include "test/base/thrown.hpp"
#include "test/core/problem.hpp"
#include "test/support/sanitized.hpp"
#include "test/topology/irregular.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/checkpoint/average.hpp"
#include "core/checkpoint/compare.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/state_file.hpp"
#include "core/checkpoint/whole_file.hpp"

namespace gossamer::checkpoint_test {
namespace {

using apps::read_file;
using apps::write_bytes;
namespace fs = std::filesystem;

/// A piece of state: some numbers and a block.
struct State {
  std::vector<float> weights = {1.0F, 2.0F, 3.0F};
  double rate = 0.1;
  std::int64_t steps = 7;
  double seconds = 1.0;

  void visit(StateVisitor& visitor) {
    visitor.block("w",
                  {.data = weights.data(), .numel = std::ssize(weights), .dtype = DType::kFloat32});
    visitor.number("rate", rate);
    visitor.number("steps", steps);
    visitor.number("record/seconds", seconds);
  }
};

/// A checkpoint of two ranks. Returns its folder.
std::string make_checkpoint(const Folder& folder, const std::string& name, State state) {
  const std::string path = folder.file(name);
  fs::create_directories(path);
  Manifest manifest{.step = 7, .world_size = 2, .run = {{"run.seed", "1"}}};
  for (int rank = 0; rank < 2; ++rank) {
    state.rate += rank;
    StateSnapshot snapshot;
    state.visit(snapshot);
    manifest.files[rank_file_name(rank)] = snapshot.write(concat(path, "/", rank_file_name(rank)));
  }
  write_manifest(path, manifest);
  return path;
}

TEST(StateFile, GivesBackWhatTheVisitorSaw) {
  const Folder folder;
  const std::string path = make_checkpoint(folder, "a", {});
  const SafetensorsFile file(path + "/rank-00001.safetensors");
  State state{.weights = {0, 0, 0}, .rate = 0, .steps = 0, .seconds = 0};
  StateLoader loader(file);
  EXPECT_THROW(loader.check_all_loaded(), CheckpointError);
  constexpr std::array<std::string_view, 2> kOthers = {"record/", "st"};
  EXPECT_THROW(loader.check_all_loaded(kOthers), CheckpointError) << "w and rate are missing";
  constexpr std::array<std::string_view, 3> kAll = {"record/", "w", ""};
  loader.check_all_loaded(kAll);
  state.visit(loader);
  loader.check_all_loaded();
  EXPECT_EQ(state.weights, State().weights);
  EXPECT_EQ(state.rate, 1.1);
  EXPECT_EQ(state.steps, 7);
}

TEST(StateFile, GivesBackFromMemoryWhatAFileWouldHold) {
  State saved{.weights = {4.0F, 5.0F, 6.0F}, .rate = 0.5, .steps = 3, .seconds = 2.0};
  StateSnapshot snapshot;
  saved.visit(snapshot);
  const std::vector<TensorView> tensors = snapshot.tensors();
  const TensorsInMemory source("the state", tensors);
  StateLoader loader(source);
  State state;
  state.visit(loader);
  loader.check_all_loaded();
  EXPECT_EQ(state.weights, saved.weights);
  EXPECT_EQ(state.rate, 0.5);
  EXPECT_EQ(state.steps, 3);
  EXPECT_EQ(state.seconds, 2.0);
  double number = 0.0;
  EXPECT_EQ(
      what_of<CheckpointError>([&] { loader.number("rat", number); }).find("the state has no"), 0U);
  std::vector<TensorView> twice = tensors;
  twice.push_back(tensors.front());
  EXPECT_THROW(TensorsInMemory("the state", twice), CheckpointError);
}

TEST(StateFile, RefusesOtherNamesTypesAndSizes) {
  const Folder folder;
  const SafetensorsFile file(make_checkpoint(folder, "a", {}) + "/rank-00000.safetensors");
  StateLoader loader(file);
  std::vector<float> four(4);
  std::vector<double> three(3);
  double number = 0.0;
  const auto refusal = [](const auto& call) { return what_of<CheckpointError>(call); };
  EXPECT_NE(refusal([&] { loader.number("rat", number); }).find("has no rat"), std::string::npos);
  EXPECT_NE(refusal([&] { loader.number("steps", number); }).find("8 bytes of I64"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              loader.block("w", {.data = four.data(), .numel = 4, .dtype = DType::kFloat32});
            }).find("12 bytes of F32, and this run needs 16"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              loader.block("w", {.data = three.data(), .numel = 3, .dtype = DType::kFloat64});
            }).find("24 bytes of F64"),
            std::string::npos);
}

TEST(StateFile, KeepsWhatTheFileMayLack) {
  const Folder folder;
  const SafetensorsFile file(make_checkpoint(folder, "a", {}) + "/rank-00000.safetensors");
  constexpr std::array<std::string_view, 1> kMayLack = {"train/"};
  StateLoader loader(file, kMayLack);
  double number = 5.0;
  loader.number("train/rate", number);
  EXPECT_EQ(number, 5.0);
  EXPECT_THROW(loader.number("rat", number), CheckpointError);
  loader.number("rate", number);
  EXPECT_EQ(number, 0.1);
}

TEST(StateFile, RefusesNumbersThatNoRunCounts) {
  const Folder folder;
  for (const std::int64_t steps : {std::int64_t{1} << 62, -(std::int64_t{1} << 62)}) {
    const std::string path = make_checkpoint(folder, "a", {.steps = steps});
    const SafetensorsFile file(path + "/rank-00000.safetensors");
    StateLoader loader(file);
    State state;
    EXPECT_TRUE(contains(what_of<CheckpointError>([&] { state.visit(loader); }),
                         concat("steps is ", steps, ", which no run can have saved")));
  }
}

TEST(StateFile, RefusesTwoPiecesOfOneName) {
  const Folder folder;
  StateSnapshot snapshot;
  double number = 0.0;
  snapshot.number("x", number);
  snapshot.number("x", number);
  EXPECT_THROW(snapshot.write(folder.file("a")), CheckpointError);
}

TEST(StateFile, UsesItsMemoryAgain) {
  const Folder folder;
  StateSnapshot snapshot;
  for (const float value : {1.0F, 2.0F}) {
    State state{.weights = {value}};
    snapshot.clear();
    state.visit(snapshot);
    EXPECT_EQ(snapshot.num_bytes(), 4 + 3 * 8);
    snapshot.write(folder.file("a"));
    const SafetensorsFile file(folder.file("a"));
    float read = 0.0F;
    file.read(*file.find("w"), &read);
    EXPECT_EQ(read, value);
  }
}

TEST(Checkpoint, VerifiesAndKeepsItsManifest) {
  const Folder folder;
  const std::string path = make_checkpoint(folder, "a", {});
  const Manifest manifest = verify_checkpoint(path);
  EXPECT_EQ(manifest.step, 7);
  EXPECT_EQ(manifest.world_size, 2);
  EXPECT_EQ(manifest.run.at("run.seed"), "1");
  EXPECT_EQ(manifest.files.size(), 2U);
}

/// Under sanitizers every seventh bit: still every bit of some byte.
constexpr std::size_t kBitStep = kSanitized ? 7 : 1;

TEST(Checkpoint, FailsVerificationForAnyFlippedBitAndAnyLostByte) {
  const Folder folder;
  const std::string path = make_checkpoint(folder, "a", {});
  const std::string file = path + "/" + rank_file_name(1);
  const std::string whole = read_file(file);
  for (std::size_t bit = 0; bit < 8 * whole.size(); bit += kBitStep) {
    std::string bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    write_bytes(file, bytes);
    ASSERT_THROW(verify_checkpoint(path), CheckpointError) << "bit " << bit;
  }
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write_bytes(file, whole.substr(0, size));
    ASSERT_THROW(verify_checkpoint(path), CheckpointError) << size << " bytes";
  }
  fs::remove(file);
  EXPECT_THROW(verify_checkpoint(path), CheckpointError);
}

TEST(Manifest, IsRefusedForAnyLostByteAndAnyFlippedBit) {
  const Folder folder;
  const std::string path = make_checkpoint(folder, "a", {});
  const std::string file = path + "/manifest.json";
  const std::string whole = read_file(file);
  // The last two bytes are the brace and the end of the line.
  for (std::size_t size = 0; size + 1 < whole.size(); ++size) {
    write_bytes(file, whole.substr(0, size));
    ASSERT_THROW(read_manifest(path), CheckpointError) << size << " bytes";
  }
  for (std::size_t bit = 0; bit < 8 * whole.size(); bit += kBitStep) {
    std::string bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    write_bytes(file, bytes);
    try {
      // A digit of a step or a letter of the configuration may change without a trace.
      verify_checkpoint(path);
    } catch (const CheckpointError&) {
    }
  }
}

TEST(Manifest, NamesTheMembersWhereTheyChange) {
  const Folder folder;
  const std::string path = make_checkpoint(folder, "a", {});
  Manifest manifest = read_manifest(path);
  EXPECT_TRUE(manifest.members.empty());
  EXPECT_EQ(read_file(path + "/manifest.json").find("members"), std::string::npos);
  manifest.members = {1, 4};
  write_manifest(path, manifest);
  EXPECT_EQ(read_manifest(path).members, manifest.members);
}

TEST(Manifest, IsRefusedIfHostile) {
  const Folder folder;
  const std::string path = make_checkpoint(folder, "a", {});
  const std::string digest(64, '0');
  const auto manifest = [&](const std::string& files) {
    return R"({"version":1,"step":7,"world_size":1,"run":{},"files":{)" + files + "}}";
  };
  const auto file = [&](const std::string& name) {
    return "\"" + name + R"(":{"bytes":1,"sha256":")" + digest + "\"}";
  };
  const std::vector<std::pair<std::string, std::string>> all = {
      {"", "not JSON"},
      {"[]", "missing"},
      {"null", "missing"},
      {manifest(file("../x")), "no file name"},
      {manifest(file("/etc/passwd")), "no file name"},
      {manifest(file(".hidden")), "no file name"},
      {manifest(file("")), "no file name"},
      {manifest(file("a\\u0000b")), "no file name"},
      {manifest(file("x") + "," + file("x")), "comes twice"},
      {manifest(R"("x":{"bytes":-1,"sha256":")" + digest + "\"}"), "out of range"},
      {manifest(R"("x":{"bytes":1,"sha256":"00"})"), "SHA-256"},
      {manifest(R"("x":[[[[]]]])"), "nested"},
      {std::string(1'000'000, '['), "nested"},
      {R"({"version":2,"step":7,"world_size":0,"run":{},"files":{}})", "version"},
      {R"({"version":1,"step":1e300,"world_size":0,"run":{},"files":{}})", "out of range"},
      {R"({"version":1,"step":7,"world_size":9999999,"run":{},"files":{}})", "out of range"},
      {R"({"version":1,"step":7,"world_size":0,"run":{},"files":{}})", "out of range"},
      {R"({"version":1,"step":7,"world_size":1,"run":{},"files":{}})", "lacks rank-00000"},
      {R"({"version":1,"step":7,"world_size":1,"members":[0,1],"run":{},"files":{}})", "as ranks"},
      {R"({"version":1,"step":7,"world_size":1,"members":["a"],"run":{},"files":{}})",
       "wrong type"},
      {std::string(68'000'000, ' '), "at most"},
  };
  for (const auto& [text, message] : all) {
    write_bytes(path + "/manifest.json", text);
    const std::string error = what_of<CheckpointError>([&] { read_manifest(path); });
    EXPECT_NE(error.find(message), std::string::npos) << text.substr(0, 120) << "\n" << error;
  }
}

TEST(Checkpoint, MayNotLeadElsewhereByLinks) {
  const Folder folder;
  const std::string path = make_checkpoint(folder, "a", {});
  const std::string file = path + "/" + rank_file_name(0);
  fs::rename(file, folder.file("elsewhere"));
  fs::create_symlink(folder.file("elsewhere"), file);
  const std::string error = what_of<CheckpointError>([&] { verify_checkpoint(path); });
  EXPECT_NE(error.find("symbolic link"), std::string::npos) << error;
}

TEST(Checkpoints, AreListedByTheirSteps) {
  const Folder folder;
  EXPECT_EQ(checkpoint_name(20), "step-000000020");
  for (const std::int64_t step :
       {std::int64_t{200}, std::int64_t{1'000'000'000'000}, std::int64_t{30}}) {
    fs::create_directories(folder.file("c/" + checkpoint_name(step)));
  }
  for (const char* name : {".staging-step-000000040", "step-x", "step-1", "other"}) {
    fs::create_directories(folder.file(concat("c/", name)));
  }
  const std::vector<std::string> expected = {folder.file("c/step-000000030"),
                                             folder.file("c/step-000000200"),
                                             folder.file("c/step-1000000000000")};
  EXPECT_EQ(list_checkpoints(folder.file("c")), expected);
  EXPECT_TRUE(list_checkpoints(folder.file("nothing")).empty());
  // A run in a folder that cannot be read must not look like a new one.
  fs::create_directory_symlink("loop", folder.file("loop"));
  EXPECT_THROW(list_checkpoints(folder.file("loop")), CheckpointError);
  EXPECT_THROW(list_checkpoints(folder.file(std::string(300, 'x'))), CheckpointError);
}

TEST(WholeFile, WritesIntoWhatIsNoRegularFile) {
  const Folder folder;
  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  write_whole_file(pipe, "text", true);
  std::array<char, 8> got{};
  EXPECT_EQ(read(reader, got.data(), got.size()), 4);
  EXPECT_EQ(std::string(got.data(), 4), "text");
  close(reader);
  EXPECT_TRUE(fs::is_fifo(pipe));
  fs::create_symlink("/dev/null", folder.file("null"));
  write_whole_file(folder.file("null"), "text", true);
  EXPECT_TRUE(fs::is_symlink(folder.file("null")));
  EXPECT_EQ(folder.list(), (std::vector<std::string>{"null", "pipe"}));
}

TEST(WholeFile, LeavesOtherFilesAlone) {
  const Folder folder;
  write_bytes(folder.file("a.partial"), "the user's own");
  write_bytes(folder.file("other"), "another's");
  fs::create_symlink(folder.file("other"), folder.file("b.partial"));
  for (const char* const name : {"a", "b"}) write_whole_file(folder.file(name), "text", false);
  EXPECT_EQ(read_file(folder.file("a.partial")), "the user's own");
  EXPECT_EQ(read_file(folder.file("other")), "another's");
  EXPECT_EQ(folder.list(), (std::vector<std::string>{"a", "a.partial", "b", "b.partial", "other"}));
  EXPECT_EQ(read_file(folder.file("b")), "text");
}

TEST(Comparison, SeesStateAndNoRecords) {
  const Folder folder;
  const std::string first = make_checkpoint(folder, "a", {});
  const std::string later = make_checkpoint(folder, "b", {.seconds = 5.0});
  const std::string other = make_checkpoint(folder, "c", {.weights = {1.0F, 2.5F, 3.0F}});
  const auto hash = [](const std::string& path) {
    return hash_of_state(path, read_manifest(path));
  };
  EXPECT_EQ(hash(first), hash(later));
  EXPECT_NE(hash(first), hash(other));
  EXPECT_TRUE(differences_of(first, later, 2).empty());
  const auto differences = differences_of(first, other, 2);
  ASSERT_EQ(differences.size(), 2U);
  EXPECT_EQ(differences[1].rank, 1);
  EXPECT_EQ(differences[1].name, "w");
  EXPECT_EQ(differences[1].text, "differs by 0.5 at element 1");
}

TEST(Average, IsTheMeanThatPushSumPreserves) {
  Problem problem;
  problem.num_ranks = 5;
  problem.lr = 0.0;
  problem.topology = std::make_shared<const IrregularDigraph>(5);
  const Folder folder;
  fs::create_directories(folder.file("c"));
  run_ranks(5, [&](Communicator& communicator, const World& world) {
    ToyModel model = model_of(problem, communicator);
    for (int step = 0; step < 2; ++step) train_step(problem, model, world.rank, step);
    StateSnapshot snapshot;
    model.pipeline().visit(snapshot);
    static_cast<void>(snapshot.write(concat(folder.file("c/"), rank_file_name(world.rank))));
  });
  write_average(folder.file("c"), 5, folder.file("mean"));
  const SafetensorsFile mean(folder.file("mean"));
  std::size_t first = 0;
  for (std::size_t p = 0; p < problem.sizes.size(); ++p) {
    std::vector<double> values(static_cast<std::size_t>(problem.sizes[p]));
    mean.read(*mean.find(concat("p", p)), values.data());
    for (std::size_t e = 0; e < values.size(); ++e) {
      double start = 0.0;
      for (int rank = 0; rank < 5; ++rank) start += start_of(problem, rank)[first + e] / 5;
      EXPECT_NEAR(values[e], start, 1e-12) << "element " << e << " of p" << p;
    }
    first += values.size();
  }
}

TEST(Average, WeighsTheParametersByTheRanksWeights) {
  const Folder folder;
  const std::string path = folder.file("c");
  fs::create_directories(path);
  const std::vector<double> masses = {0.5, 1.5};
  for (int rank = 0; rank < 2; ++rank) {
    StateSnapshot snapshot;
    std::vector<float> weights = {1.0F + 2.0F * static_cast<float>(rank), 8.0F};
    const Block block{.data = weights.data(), .numel = 2, .dtype = DType::kFloat32};
    double mass = masses[static_cast<std::size_t>(rank)];
    snapshot.block("w", block);
    snapshot.block("w/m", block);
    snapshot.number("run/model_weight", mass);
    snapshot.number("run/mass", mass);
    static_cast<void>(snapshot.write(concat(path, "/", rank_file_name(rank))));
  }
  write_average(path, 2, folder.file("mean"));
  const SafetensorsFile mean(folder.file("mean"));
  const auto values_of = [&mean](const char* name) {
    std::vector<float> values(2);
    mean.read(*mean.find(name), values.data());
    return values;
  };
  EXPECT_EQ(values_of("w"), (std::vector<float>{2.5F, 8.0F}));
  EXPECT_EQ(values_of("w/m"), (std::vector<float>{2.0F, 8.0F}));
  double mass = 0.0;
  mean.read(*mean.find("run/mass"), &mass);
  EXPECT_EQ(mass, 1.0);
}

}  // namespace
}  // namespace gossamer::checkpoint_test
