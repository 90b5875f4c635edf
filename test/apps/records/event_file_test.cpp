#include "apps/records/event_file.hpp"

#include "test/apps/folder.hpp"

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace gossamer::apps {
namespace {

/// The data of the records of a file, whose checksums must be right.
std::vector<std::string> records_in(const std::string& bytes) {
  std::vector<std::string> records;
  std::size_t at = 0;
  const auto masked = [](const std::string& text) {
    return std::rotr(crc32c(text), 15) + 0xa282ead8U;
  };
  while (at < bytes.size()) {
    const auto length = values_at<std::uint64_t>(bytes, at, at + 8)[0];
    EXPECT_EQ(values_at<std::uint32_t>(bytes, at + 8, at + 12)[0], masked(bytes.substr(at, 8)));
    records.push_back(bytes.substr(at + 12, length));
    at += 12 + length;
    EXPECT_EQ(values_at<std::uint32_t>(bytes, at, at + 4)[0], masked(records.back()));
    at += 4;
  }
  return records;
}

TEST(Crc32c, HasTheKnownValues) {
  // RFC 3720, section B.4, and the usual check value.
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
}

TEST(EventFile, HoldsOneRecordForEveryWrite) {
  const Folder folder;
  EventFile file(folder.file(""), 0);
  file.write(300, {{"loss", 0.5}, {"lr", 1e-3}});
  const auto records = records_in(read_file(file.path()));
  ASSERT_EQ(records.size(), 2U);
  EXPECT_NE(records[0].find("brain.Event:2"), std::string::npos);
  // Field 1, a double; field 2, the step 300 as varint; field 5, the summary.
  EXPECT_EQ(records[1][0], '\x09');
  EXPECT_EQ(records[1].substr(9, 3), std::string("\x10\xac\x02"));
  EXPECT_EQ(records[1][12], '\x2a');
  const std::string value("\x0a\x04loss\x15\x00\x00\x00\x3f", 11);
  EXPECT_NE(records[1].find(value), std::string::npos);
  // A second file of the same second has another name.
  const EventFile other(folder.file(""), 0);
  EXPECT_NE(other.path(), file.path());
}

TEST(EventFile, TellsWhereAResumedRunBegins) {
  const Folder folder;
  const EventFile file(folder.file(""), 7);
  const auto records = records_in(read_file(file.path()));
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[1].substr(9), std::string("\x10\x08\x3a\x02\x08\x01", 6));
  EXPECT_THROW(EventFile(folder.file("no/such/folder"), 0), CheckpointError);
}

}  // namespace
}  // namespace gossamer::apps
