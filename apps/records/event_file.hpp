#pragma once
// Event files of TensorBoard: numbers over steps.
//
// A file is a row of records (TensorFlow's TFRecord): the length of the data in 8 bytes, a checksum
// of the length, the data, a checksum of the data. The data are a protocol buffer of the type Event
// with a time, a step, and values with names.
// Formats: tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto and
// tensorflow/core/lib/io/record_writer.h in https://github.com/tensorflow/tensorflow.
//
// Not thread safe. Errors: CheckpointError.

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gossamer::apps {

/// CRC-32C (Castagnoli) of some bytes.
std::uint32_t crc32c(std::string_view bytes);

class EventFile {
 public:
  using Values = std::vector<std::pair<std::string, double>>;

  /// Opens a new file in a folder. `first_step`: the run is resumed after this step, and
  /// TensorBoard leaves out what earlier files have beyond it.
  EventFile(const std::string& folder, std::int64_t first_step);

  /// Appends the values of a step.
  void write(std::int64_t step, const Values& values);
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  void write_record(std::string_view data);

  std::string path_;
  std::ofstream file_;
};

}  // namespace gossamer::apps
