#pragma once
// Files in the safetensors format. They begin with 8 bytes that hold the size of the header. A JSON
// header follows, with the name, type, shape and place of each tensor, and then the raw
// little-endian values. Reading such a file runs no code. Python reads it with
// safetensors.torch.load_file(). Format: https://github.com/huggingface/safetensors, "Format".
//
// The reader trusts nothing. It refuses a header that is too large or nested, and a key or a name
// that comes twice. It refuses sizes that overflow. The places of the tensors must follow one
// another without a gap, and must end where the file ends. The reader allocates no more than a
// small multiple of the header.
//
// Errors: CheckpointError with the path. Thread safety: a file may be read by any thread.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/open_file.hpp"
#include "core/checkpoint/sha256.hpp"
#include "core/checkpoint/tensor_source.hpp"

namespace gossamer {

/// Bytes of one element. Throws CheckpointError for a type that the format does not have.
std::int64_t bytes_of_element(std::string_view dtype);

class SafetensorsFile : public TensorSource {
 public:
  /// The largest header that is read and written, in bytes; the format's own library has the same
  /// limit.
  static constexpr std::int64_t kMostHeaderBytes = 100'000'000;

  /// Reads the header and checks it.
  explicit SafetensorsFile(std::string path, SymbolicLink link = SymbolicLink::kRefused);

  [[nodiscard]] const std::string& path() const { return file_.path(); }
  [[nodiscard]] const std::string& title() const override { return path(); }
  [[nodiscard]] std::span<const TensorEntry> tensors() const override { return tensors_; }
  [[nodiscard]] const TensorEntry* find(std::string_view name) const override;
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  void read(const TensorEntry& tensor, void* to) const override;

 private:
  void check_places() const;

  OpenFile file_;
  std::int64_t data_begin_ = 0;
  std::vector<TensorEntry> tensors_;
  /// Index of each tensor, by name.
  std::map<std::string, std::size_t, std::less<>> places_;
  std::map<std::string, std::string> metadata_;
};

/// Writes the tensors, tensors with wide elements first. The path holds the whole file or none
/// (WholeFile). Throws CheckpointError before it writes anything that SafetensorsFile would refuse:
/// a name that comes twice, is `__metadata__` or is no UTF-8, and a header above kMostHeaderBytes.
FileDigest write_safetensors(const std::string& path, std::vector<TensorView> tensors,
                             const std::map<std::string, std::string>& metadata = {});

}  // namespace gossamer
