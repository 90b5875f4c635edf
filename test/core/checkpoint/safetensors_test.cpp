// The reader of safetensors files: what the writer has written, and nothing that is not valid.

#include "core/checkpoint/safetensors.hpp"

#include "test/apps/folder.hpp"
#include "test/base/thrown.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace gossamer::safetensors_test {
namespace {

using apps::read_file;
using apps::write_bytes;
namespace fs = std::filesystem;

/// A file with this header and `num_values` bytes of values.
std::string file_of(const std::string& header, std::size_t num_values) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) {
    bytes[i] = static_cast<char>(static_cast<std::uint8_t>(header.size() >> (8 * i)));
  }
  return bytes + header + std::string(num_values, 'v');
}

const std::array<float, 3> kFloats = {1.5F, -2.0F, 3.25F};
const std::array<std::int64_t, 1> kInteger = {1LL << 40};
const std::array<std::uint8_t, 5> kBytes = {1, 2, 3, 4, 5};

std::vector<TensorView> some_tensors() {
  return {{.name = "bytes", .dtype = "U8", .shape = {5}, .data = kBytes.data(), .num_bytes = 5},
          {.name = "a \"b\"/\n",
           .dtype = "F32",
           .shape = {3, 1},
           .data = kFloats.data(),
           .num_bytes = 12},
          {.name = "count", .dtype = "I64", .shape = {}, .data = kInteger.data(), .num_bytes = 8},
          {.name = "empty", .dtype = "F64", .shape = {0, 4}, .data = nullptr, .num_bytes = 0}};
}

TEST(Safetensors, ReadBackWhatWasWritten) {
  const Folder folder;
  const std::string path = folder.file("x.safetensors");
  const FileDigest digest = write_safetensors(path, some_tensors(), {{"run", "x"}, {"k", ""}});
  EXPECT_EQ(digest, digest_of_file(path));
  EXPECT_EQ(digest.num_bytes, std::ssize(read_file(path)));
  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"run", "x"}, {"k", ""}}));
  ASSERT_EQ(file.tensors().size(), 4U);
  EXPECT_EQ(file.find("nothing"), nullptr);
  std::int64_t last = 8;
  for (const TensorEntry& tensor : file.tensors()) {
    const std::int64_t element = bytes_of_element(tensor.dtype);
    EXPECT_LE(element, last) << "wide elements come first";
    EXPECT_EQ(tensor.begin % element, 0);
    last = element;
  }
  for (const TensorView& view : some_tensors()) {
    const TensorEntry* tensor = file.find(view.name);
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->dtype, view.dtype);
    EXPECT_EQ(tensor->shape, view.shape);
    ASSERT_EQ(tensor->num_bytes(), view.num_bytes);
    std::string values(static_cast<std::size_t>(view.num_bytes), ' ');
    file.read(*tensor, values.data());
    EXPECT_EQ(values, std::string(static_cast<const char*>(view.data), values.size()));
  }
}

TEST(Safetensors, MayHoldNothing) {
  const Folder folder;
  write_safetensors(folder.file("x"), {});
  EXPECT_TRUE(SafetensorsFile(folder.file("x")).tensors().empty());
}

TEST(Safetensors, OfUnknownTypesAreNotWritten) {
  const Folder folder;
  EXPECT_THROW(write_safetensors(folder.file("x"), {{.name = "a", .dtype = "C64"}}),
               CheckpointError);
  EXPECT_TRUE(folder.list().empty());
}

TEST(Safetensors, AreRefusedWhereTheyEndTooEarlyOrTooLate) {
  const Folder folder;
  const std::string path = folder.file("x");
  write_safetensors(path, some_tensors());
  const std::string whole = read_file(path);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write_bytes(path, whole.substr(0, size));
    EXPECT_THROW(SafetensorsFile{path}, CheckpointError) << size << " bytes";
  }
  write_bytes(path, whole + "x");
  EXPECT_THROW(SafetensorsFile{path}, CheckpointError);
}

TEST(Safetensors, WithAFlippedBitAreRefusedOrRead) {
  const Folder folder;
  const std::string path = folder.file("x");
  write_safetensors(path, some_tensors());
  const std::string whole = read_file(path);
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    write_bytes(path, bytes);
    try {
      const SafetensorsFile file(path);
      for (const TensorEntry& tensor : file.tensors()) {
        std::string values(static_cast<std::size_t>(tensor.num_bytes()), ' ');
        file.read(tensor, values.data());
      }
    } catch (const CheckpointError&) {
    }
  }
}

struct Refused {
  std::string header;
  std::size_t num_values;
  std::string message;
};

std::string tensor_text(const std::string& name, const std::string& shape,
                        const std::string& offsets, const std::string& dtype = "F32") {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
         offsets + "}";
}

TEST(Safetensors, AreRefusedForAHostileHeader) {
  const std::string good = tensor_text("a", "[1]", "[0,4]");
  const std::vector<Refused> all = {
      {"", 0, "does not begin with {"},
      {"[]", 0, "does not begin with {"},
      {"{", 0, "not valid JSON"},
      {"{\"\xff\":1}", 0, "not valid JSON"},
      {"{} {}", 0, "not valid JSON"},
      {"{" + good + "," + good + "}", 8, "comes twice"},
      {"{" + tensor_text("a", "[1]", "[0,4]") + "," + tensor_text("b", "[1]", "[0,4]") + "}", 4,
       "overlaps"},
      {"{" + tensor_text("a", "[1]", "[0,4]") + "," + tensor_text("b", "[1]", "[8,12]") + "}", 12,
       "leaves a gap"},
      {"{" + tensor_text("a", "[1]", "[4,0]") + "}", 4, "ends before it begins"},
      {"{" + tensor_text("a", "[1]", "[-4,0]") + "}", 4, "negative"},
      {"{" + tensor_text("a", "[-1]", "[0,4]") + "}", 4, "negative"},
      {"{" + tensor_text("a", "[1.5]", "[0,4]") + "}", 4, "not an integer"},
      {"{" + tensor_text("a", "[1]", "[0,4]", "F31") + "}", 4, "unknown type"},
      {"{" + tensor_text("a", "[2]", "[0,4]") + "}", 4, "another size"},
      {"{" + tensor_text("a", "[4611686018427387904,4611686018427387904]", "[0,0]") + "}", 0,
       "another size"},
      {"{" + tensor_text("a", "[18446744073709551615]", "[0,4]") + "}", 4, "too large"},
      {"{" + tensor_text("a", "[1]", "[0,9223372036854775807]") + "}", 4, "another size"},
      {"{" + tensor_text("a", "[1]", "[0]") + "}", 4, "two data_offsets"},
      {"{" + tensor_text("a", "[1]", "[0,4,8]") + "}", 4, "two data_offsets"},
      {"{" + tensor_text("a", "1", "[0,4]") + "}", 4, "wrong place"},
      {"{" + tensor_text("a", "[[1]]", "[0,4]") + "}", 4, "wrong place"},
      {"{" + tensor_text("a", "[{}]", "[0,4]") + "}", 4, "nested"},
      {R"({"a":{"dtype":"F32","shape":[1]}})", 4, "lacks"},
      {R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4, "twice"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4, "unknown key"},
      {R"({"a":{"dtype":null,"shape":[1],"data_offsets":[0,4]}})", 4, "null"},
      {R"({"a":1})", 0, "wrong place"},
      {R"({"a":"b"})", 0, "wrong place"},
      {R"({"a":[]})", 0, "wrong place"},
      {R"({"__metadata__":{"a":1}})", 0, "wrong place"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", 0, "twice"},
      {R"({"__metadata__":{"a":{}}})", 0, "nested"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, "twice"},
      {std::string(100'000, '{'), 0, "not valid JSON"},
      {"{\"a\":" + std::string(100'000, '['), 0, "wrong place"},
      {"{" + good + "}", 8, "8 bytes of values"},
  };
  const Folder folder;
  const std::string path = folder.file("x");
  for (const Refused& refused : all) {
    write_bytes(path, file_of(refused.header, refused.num_values));
    const std::string error = what_of<CheckpointError>([&] { const SafetensorsFile file(path); });
    EXPECT_NE(error.find(refused.message), std::string::npos)
        << refused.header.substr(0, 200) << "\n"
        << error;
    EXPECT_TRUE(error.starts_with(path)) << error;
  }
  write_bytes(path, file_of("{" + good + "}", 4));
  EXPECT_EQ(SafetensorsFile(path).tensors().size(), 1U);
}

TEST(Safetensors, WithAHeaderOfHugeSizeCostNoMemory) {
  const Folder folder;
  const std::string path = folder.file("x");
  write_bytes(path, std::string(8, '\xff') + "{}");
  EXPECT_THROW(SafetensorsFile{path}, CheckpointError);
  // A hole of a gigabyte, which takes no room on the disk.
  std::string bytes(8, '\0');
  bytes[3] = '\x40';
  write_bytes(path, bytes + "{");
  fs::resize_file(path, std::uintmax_t{1} << 31U);
  const std::string error = what_of<CheckpointError>([&] { const SafetensorsFile file(path); });
  EXPECT_NE(error.find("at most 100000000 are read"), std::string::npos) << error;
}

/// The message with which tensors of these names are not written.
std::string refusal_of(const std::string& path, const std::vector<std::string>& names) {
  std::vector<TensorView> tensors;
  for (const std::string& name : names) {
    tensors.push_back(
        {.name = name, .dtype = "U8", .shape = {5}, .data = kBytes.data(), .num_bytes = 5});
  }
  const std::string text = what_of<CheckpointError>([&] { write_safetensors(path, tensors); });
  EXPECT_FALSE(fs::exists(path)) << "nothing is written";
  return text;
}

TEST(Safetensors, AreNotWrittenWithNamesThatTheReaderRefuses) {
  const Folder folder;
  const std::string path = folder.file("x");
  EXPECT_TRUE(contains(refusal_of(path, {"a", "b", "a"}), "the name a comes twice"));
  EXPECT_TRUE(contains(refusal_of(path, {"__metadata__"}), "__metadata__ is the format's own"));
  EXPECT_TRUE(contains(refusal_of(path, {"a", "\xff"}), "is no UTF-8"));
}

// A header of 100 MB takes seconds.
TEST(WideSafetensors, AreReadUpToTheLargestHeaderThatIsWritten) {
  const Folder folder;
  const std::string path = folder.file("x");
  constexpr std::string_view kHeader = R"({"":{"dtype":"U8","shape":[5],"data_offsets":[0,5]}})";
  std::string name(SafetensorsFile::kMostHeaderBytes - kHeader.size(), 'n');
  write_safetensors(
      path, {{.name = name, .dtype = "U8", .shape = {5}, .data = kBytes.data(), .num_bytes = 5}});
  EXPECT_NE(SafetensorsFile(path).find(name), nullptr);
  fs::remove(path);
  name += 'n';
  EXPECT_TRUE(contains(refusal_of(path, {name}), "at most 100000000 are read"));
}

TEST(Safetensors, AreRegularFilesAlone) {
  const Folder folder;
  write_safetensors(folder.file("x"), some_tensors());
  fs::create_symlink(folder.file("x"), folder.file("link"));
  fs::create_directory(folder.file("folder"));
  for (const char* name : {"link", "folder", "nothing"}) {
    EXPECT_THROW(SafetensorsFile{folder.file(name)}, CheckpointError) << name;
  }
  EXPECT_EQ(SafetensorsFile(folder.file("link"), SymbolicLink::kFollowed).tensors().size(),
            some_tensors().size());
  EXPECT_THROW(SafetensorsFile{"/dev/zero"}, CheckpointError);
}

}  // namespace
}  // namespace gossamer::safetensors_test
