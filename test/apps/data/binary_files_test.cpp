// The data sets `tokens` and `cifar10`: binary files with sizes that must fit.

#include "test/apps/data/array_view.hpp"
#include "test/apps/folder.hpp"
#include "test/base/thrown.hpp"

#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "apps/data/array_samples.hpp"
#include "apps/data/dataset.hpp"
#include "base/error.hpp"

namespace gossamer::apps::binary_files_test {
namespace {

Dataset load(const std::string& name, const std::string& path, const std::string& more = "") {
  const std::string yaml = concat("path: \"", path, "\"", more);
  return configure_dataset(name, Options::parse(yaml))->load(1);
}

/// The tokens first, first + 1, ...
template <class Token>
std::string tokens(Token first, std::size_t count) {
  std::string bytes(count * sizeof(Token), '\0');
  for (std::size_t i = 0; i < count; ++i) {
    const auto token = static_cast<Token>(first + i);
    std::memcpy(bytes.data() + i * sizeof(Token), &token, sizeof(Token));
  }
  return bytes;
}

std::string header(std::int32_t magic, std::int32_t version, std::int32_t count) {
  std::string bytes(1024, '\0');
  const std::int32_t fields[] = {magic, version, count};
  std::memcpy(bytes.data(), fields, sizeof(fields));
  return bytes;
}

TEST(Tokens, ReadsFilesWithoutAHeader) {
  const Folder folder;
  write_bytes(folder.file("train.bin"), tokens<std::uint16_t>(300, 30));
  write_bytes(folder.file("val.bin"), tokens<std::uint16_t>(0, 9));
  const Dataset data = load("tokens", folder.file(""), ", context: 4, vocab_size: 1000");
  EXPECT_EQ(data.train->kind(), SampleKind::kTokens);
  EXPECT_EQ(data.train->shape().num_outputs, 1000);
  EXPECT_EQ(data.train->size(), 7) << "29 tokens have a follower";
  EXPECT_EQ(data.validation->size(), 2);
  EXPECT_EQ(window(*data.train, 6), (std::vector<std::int64_t>{324, 325, 326, 327, 328}));
}

TEST(Tokens, ReadsFilesOfLlmCInSeveralParts) {
  const Folder folder;
  write_bytes(folder.file("t_train_000002.bin"),
              header(20240801, 7, 6) + tokens<std::uint32_t>(100'000, 6));
  write_bytes(folder.file("t_train_000001.bin"),
              header(20240520, 1, 11) + tokens<std::uint16_t>(0, 11));
  write_bytes(folder.file("t_val_000000.bin"),
              header(20240520, 1, 5) + tokens<std::uint16_t>(7, 5));
  const Dataset data = load("tokens", folder.file(""), ", context: 4, vocab_size: 200000");
  ASSERT_EQ(data.train->size(), 3);
  EXPECT_EQ(window(*data.train, 1), (std::vector<std::int64_t>{4, 5, 6, 7, 8}));
  EXPECT_EQ(window(*data.train, 2),
            (std::vector<std::int64_t>{100'000, 100'001, 100'002, 100'003, 100'004}))
      << "windows do not go from one file to the next";
  EXPECT_EQ(window(*data.validation, 0)[4], 11);
}

TEST(Tokens, SplitsASingleFileNineToOne) {
  const Folder folder;
  write_bytes(folder.file("all.bin"), tokens<std::uint16_t>(0, 100));
  const Dataset data = load("tokens", folder.file("all.bin"), ", context: 3");
  EXPECT_EQ(data.train->size(), 29);
  EXPECT_EQ(window(*data.validation, 0), (std::vector<std::int64_t>{90, 91, 92, 93}));
  EXPECT_EQ(data.train->shape().num_outputs, 50'257);
}

TEST(Tokens, SaysWhatIsWrong) {
  const Folder folder;
  const std::string path = folder.file("all.bin");
  const auto error_of = [&](const std::string& bytes) {
    write_bytes(path, bytes);
    return what_of<DataError>([&] { load("tokens", path, ", context: 4"); });
  };
  EXPECT_TRUE(contains(error_of("abc"), "byte 2: the file has 3 bytes"));
  EXPECT_TRUE(contains(error_of(""), "a window needs 5"));
  EXPECT_TRUE(contains(error_of(header(20240520, 2, 0)), "byte 4: version 2"));
  EXPECT_TRUE(contains(error_of(header(20240520, 1, 2'000'000'000)), "byte 8: 2000000000 tokens"));
  EXPECT_TRUE(contains(error_of(header(20240520, 1, -1)), "byte 8"));
  EXPECT_TRUE(contains(what_of<DataError>([&] { load("tokens", folder.file("nothing.bin")); }),
                       "nothing.bin"));
  EXPECT_TRUE(contains(what_of<DataError>([&] { load("tokens", folder.file("")); }), "`train`"));
  write_bytes(folder.file("retrieval_train.bin"), tokens<std::uint16_t>(0, 100));
  EXPECT_TRUE(contains(what_of<DataError>([&] { load("tokens", folder.file("")); }),
                       "it is unclear what the file is for"));
  write_bytes(path, tokens<std::uint16_t>(0, 100));
  const Dataset data = load("tokens", path, ", context: 4, vocab_size: 40");
  EXPECT_EQ(window(*data.train, 0).back(), 4);
  const std::string what = what_of<DataError>([&] { window(*data.train, 9); });
  EXPECT_TRUE(contains(what, "byte 80: token 40")) << what;
}

/// `count` images; the first pixel of each is its class, all others are 9.
std::string cifar_records(int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) {
    std::string record(3073, '\x09');
    record[0] = record[1] = static_cast<char>(i % 10);
    bytes += record;
  }
  return bytes;
}

TEST(Cifar10, ReadsItsBinaryFiles) {
  const Folder folder;
  for (int i = 1; i <= 5; ++i) {
    write_bytes(folder.file(concat("data_batch_", i, ".bin")), cifar_records(4));
  }
  write_bytes(folder.file("test_batch.bin"), cifar_records(11));
  const Dataset data = load("cifar10", folder.file(""));
  EXPECT_EQ(data.train->size(), 20);
  EXPECT_EQ(data.validation->size(), 11);
  EXPECT_EQ(data.train->shape(),
            (SampleShape{.height = 32, .width = 32, .num_outputs = 10, .channels = 3}));
  EXPECT_EQ(data.train->labels()[6], 2);
  std::vector<float> values(3072);
  data.train->copy_array(6, values);
  EXPECT_FLOAT_EQ(values[0], 2.0F / 127.5F - 1.0F);
  EXPECT_FLOAT_EQ(values[3071], 9.0F / 127.5F - 1.0F);

  const auto error = [&] { return what_of<DataError>([&] { load("cifar10", folder.file("")); }); };
  write_bytes(folder.file("data_batch_3.bin"), cifar_records(4).substr(0, 3073 * 2 + 5));
  EXPECT_TRUE(contains(error(), "data_batch_3.bin: byte 6146")) << error();
  std::string bad = cifar_records(3);
  bad[3073] = '\x0a';
  write_bytes(folder.file("data_batch_3.bin"), bad);
  EXPECT_TRUE(contains(error(), "byte 3073: class 10")) << error();
  std::filesystem::remove(folder.file("data_batch_3.bin"));
  EXPECT_TRUE(contains(error(), "data_batch_3.bin: cannot be opened")) << error();
}

}  // namespace
}  // namespace gossamer::apps::binary_files_test
