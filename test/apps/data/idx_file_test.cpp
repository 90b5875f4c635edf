#include "apps/data/idx_file.hpp"

#include "test/apps/data/idx_writer.hpp"
#include "test/base/thrown.hpp"

#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace gossamer::apps {
namespace {

Bytes read_all(const std::filesystem::path& path, std::int64_t dimensions = 3) {
  IdxFile file(path, dimensions);
  Bytes bytes;
  file.append(file.items(), bytes);
  file.finish();
  return bytes;
}

/// The message of the DataError that `action` throws; it must name the file and contain `part`.
void expect_data_error(const std::filesystem::path& path, const std::string& part,
                       const std::function<void()>& action) {
  const std::string message = what_of<DataError>(action);
  EXPECT_TRUE(message.starts_with(path.string() + ": ")) << message;
  EXPECT_TRUE(contains(message, part)) << message << "\nlacks: " << part;
}

void expect_refused(const std::filesystem::path& path, const std::string& part,
                    std::int64_t dimensions = 3) {
  expect_data_error(path, part, [&] { read_all(path, dimensions); });
}

std::string byte_text(std::size_t offset) { return ": byte " + std::to_string(offset); }

TEST(IdxFile, ReadsImagesPlainAndPacked) {
  const TemporaryFolder folder;
  const Bytes content = idx_images(5);
  const Bytes pixels(content.begin() + 16, content.end());
  EXPECT_EQ(read_all(folder.write("plain", content)), pixels);
  EXPECT_EQ(read_all(folder.write("packed", gzip(content))), pixels);
  const IdxFile file(folder.path() / "plain", 3);
  EXPECT_EQ(std::vector(file.shape().begin(), file.shape().end()),
            (std::vector<std::int64_t>{5, 3, 4}));
  EXPECT_EQ(file.items(), 5);
}

TEST(IdxFile, ReadsFilesLargerThanItsBuffers) {
  const TemporaryFolder folder;
  const Bytes content = idx_images(4000, 28, 28);
  const Bytes pixels(content.begin() + 16, content.end());
  EXPECT_EQ(read_all(folder.write("plain", content)), pixels);
  EXPECT_EQ(read_all(folder.write("packed", gzip(content))), pixels);
}

TEST(IdxFile, ReadsGzipFilesOfSeveralMembers) {
  const TemporaryFolder folder;
  const Bytes content = idx_images(5);
  const Bytes first = first_bytes(content, 21);
  const Bytes second(content.begin() + 21, content.end());
  EXPECT_EQ(read_all(folder.write("packed", concatenated(gzip(first), gzip(second)))),
            Bytes(content.begin() + 16, content.end()));
}

TEST(IdxFile, SkipsAndAppendsInOrder) {
  const TemporaryFolder folder;
  const Bytes content = idx_labels(10);
  IdxFile file(folder.write("labels", content), 1);
  Bytes bytes = {99};
  file.skip(3);
  file.append(2, bytes);
  file.skip(4);
  file.append(1, bytes);
  file.finish();
  EXPECT_EQ(bytes, (Bytes{99, 3, 4, 9}));
}

TEST(IdxFile, RefusesToBeAskedForMoreThanItHas) {
  const TemporaryFolder folder;
  IdxFile file(folder.write("labels", idx_labels(10)), 1);
  EXPECT_THROW(file.skip(11), std::logic_error);
  EXPECT_THROW(file.skip(-1), std::logic_error);
  EXPECT_THROW(file.finish(), std::logic_error);
}

TEST(IdxFile, RefusesWhatIsNoFile) {
  const TemporaryFolder folder;
  expect_refused(folder.path() / "nothing", "no such file");
  expect_refused(folder.path(), "is not a file");
}

TEST(IdxFile, RefusesAWrongMagicNumberNamingTheByte) {
  const TemporaryFolder folder;
  const std::vector<std::string> parts = {"no IDX file", "no IDX file", "element type",
                                          "dimensions"};
  for (std::size_t offset = 0; offset < 4; ++offset) {
    Bytes content = idx_images(5);
    content[offset] ^= 0x5U;
    const auto path = folder.write("images", content);
    expect_refused(path, byte_text(offset));
    expect_refused(path, parts[offset]);
    expect_refused(folder.write("images.gz", gzip(content)),
                   byte_text(offset) + " of the unpacked data");
  }
}

TEST(IdxFile, RefusesLabelsWhereImagesShouldBe) {
  const TemporaryFolder folder;
  expect_refused(folder.write("labels", idx_labels(3)), "mixed up");
  expect_refused(folder.write("images", idx_images(3)), "mixed up", 1);
}

TEST(IdxFile, RefusesDimensionsThatCannotBe) {
  const TemporaryFolder folder;
  expect_refused(folder.write("images", idx_header({0, 28, 28})), byte_text(4));
  expect_refused(folder.write("images", idx_header({5, 0, 28})), byte_text(8));
  expect_refused(folder.write("images", idx_header({5, 28, 0})), byte_text(12));
  expect_refused(folder.write("images", idx_header({0xffffffffU, 28, 28})), byte_text(4));
  expect_refused(folder.write("images", idx_header({5, 16385, 28})), byte_text(8));
  expect_refused(folder.write("images", idx_header({5, 28, 0x80000000U})), byte_text(12));
  expect_refused(folder.write("labels", idx_header({0})), byte_text(4), 1);
}

TEST(IdxFile, RefusesTruncatedHeadersNamingTheOffset) {
  const TemporaryFolder folder;
  for (std::size_t length = 0; length < 16; ++length) {
    const Bytes content = first_bytes(idx_images(5), length);
    expect_refused(folder.write("images", content), byte_text(length));
    expect_refused(folder.write("images", content), "inside its header of 16 bytes");
    expect_refused(folder.write("images.gz", gzip(content)), byte_text(length));
  }
  for (std::size_t length = 0; length < 8; ++length) {
    expect_refused(folder.write("labels", first_bytes(idx_labels(5), length)),
                   "inside its header of 8 bytes", 1);
  }
}

TEST(IdxFile, RefusesTruncatedImagesNamingTheOffset) {
  const TemporaryFolder folder;
  const Bytes content = idx_images(5);
  for (std::size_t length = 16; length < content.size(); ++length) {
    const Bytes part = first_bytes(content, length);
    expect_refused(folder.write("images", part), byte_text(length));
    expect_refused(folder.write("images", part), "(5 x 3 x 4) it has 76 bytes");
    expect_refused(folder.write("images.gz", gzip(part)), byte_text(length));
  }
}

TEST(IdxFile, RefusesTruncationInWhatIsSkipped) {
  const TemporaryFolder folder;
  const auto path = folder.write("images", first_bytes(idx_images(5), 40));
  IdxFile file(path, 3);
  expect_data_error(path, byte_text(40), [&] { file.skip(5); });
}

TEST(IdxFile, RefusesHugeClaimsWithoutTheirMemory) {
  const TemporaryFolder folder;
  // The largest shape that passes for sane: 2.7e17 bytes.
  Bytes content = idx_header({1'000'000'000, 16'384, 16'384});
  content.resize(1000);
  for (const Bytes& bytes : {content, gzip(content)}) {
    const auto path = folder.write("images", bytes);
    IdxFile file(path, 3);
    Bytes out;
    expect_data_error(path, byte_text(1000), [&] { file.append(file.items(), out); });
    EXPECT_LE(out.capacity(), std::size_t{4} << 20U);
    IdxFile again(path, 3);
    expect_data_error(path, byte_text(1000), [&] { again.skip(again.items()); });
  }
}

TEST(IdxFile, RefusesTrailingBytes) {
  const TemporaryFolder folder;
  const Bytes content = idx_images(5);
  const Bytes longer = concatenated(content, {0});
  expect_refused(folder.write("images", longer), byte_text(content.size()));
  expect_refused(folder.write("images.gz", gzip(longer)), byte_text(content.size()));
  // zlib's own file reader would pass over these in silence.
  expect_refused(folder.write("images.gz", concatenated(gzip(content), {1, 2, 3})),
                 "other bytes follow the packed data");
  expect_refused(folder.write("images.gz", concatenated(gzip(content), {0x1f})), "damaged");
  expect_refused(folder.write("images.gz", concatenated(gzip(content), gzip({7}))),
                 "more bytes follow");
}

TEST(IdxFile, RefusesTruncatedGzipFiles) {
  const TemporaryFolder folder;
  const Bytes packed = gzip(idx_images(5));
  for (std::size_t length = 0; length < packed.size(); ++length) {
    expect_refused(folder.write("images.gz", first_bytes(packed, length)), ": byte ");
  }
}

TEST(IdxFile, RefusesDamagedGzipFiles) {
  const TemporaryFolder folder;
  constexpr std::size_t kGzipHeader = 10;
  const Bytes packed = gzip(idx_images(5));
  for (std::size_t offset = kGzipHeader; offset < packed.size(); ++offset) {
    Bytes damaged = packed;
    damaged[offset] ^= 0xffU;
    SCOPED_TRACE("damaged byte " + std::to_string(offset));
    expect_refused(folder.write("images.gz", damaged), ": byte ");
  }
}

}  // namespace
}  // namespace gossamer::apps
