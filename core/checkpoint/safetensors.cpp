#include "core/checkpoint/safetensors.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/checkpoint/whole_file.hpp"

namespace gossamer {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little endian");

constexpr std::string_view kMetadata = "__metadata__";
constexpr std::int64_t kLengthBytes = 8;
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

constexpr std::array kTypes = {std::pair{"F64", 8}, std::pair{"F32", 4}, std::pair{"BF16", 2},
                               std::pair{"F16", 2}, std::pair{"I64", 8}, std::pair{"I32", 4},
                               std::pair{"I16", 2}, std::pair{"I8", 1},  std::pair{"U64", 8},
                               std::pair{"U32", 4}, std::pair{"U16", 2}, std::pair{"U8", 1},
                               std::pair{"BOOL", 1}};

std::optional<std::int64_t> element_size(std::string_view dtype) {
  for (const auto& [name, bytes] : kTypes) {
    if (dtype == name) return bytes;
  }
  return std::nullopt;
}

/// Reads the header event by event. A header is one object of objects, so that little state
/// suffices, and a deep or hostile header costs no memory.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(std::vector<TensorEntry>& tensors, std::map<std::string, std::string>& metadata)
      : tensors_(tensors), metadata_(metadata) {}

  [[nodiscard]] const std::string& error() const { return error_; }

  bool start_object(std::size_t) override {
    if (depth_ == 2) return fail("is nested too deeply");
    if (++depth_ == 2) {
      seen_ = 0;
      if (name_ != kMetadata) tensors_.push_back({.name = name_});
    }
    return true;
  }
  bool end_object() override {
    if (depth_ == 2 && name_ != kMetadata && seen_ != (kDtype | kShape | kOffsets)) {
      return fail("lacks dtype, shape or data_offsets");
    }
    --depth_;
    return true;
  }
  bool key(string_t& key) override {
    if (depth_ == 1) {
      name_ = key;
      has_name_ = true;
      if (name_ != kMetadata) return true;
      return std::exchange(has_metadata_, true) ? fail("comes twice") : true;
    }
    if (name_ == kMetadata) {
      key_ = key;
      return metadata_.contains(key) ? fail(concat("has the key ", key, " twice")) : true;
    }
    field_ = key == "dtype"          ? kDtype
             : key == "shape"        ? kShape
             : key == "data_offsets" ? kOffsets
                                     : 0;
    if (field_ == 0) return fail(concat("has the unknown key ", key));
    if ((seen_ & field_) != 0) return fail(concat("has the key ", key, " twice"));
    seen_ |= field_;
    return true;
  }
  bool string(string_t& value) override {
    if (depth_ == 2 && name_ == kMetadata) {
      metadata_.emplace(key_, value);
      return true;
    }
    if (depth_ != 2 || field_ != kDtype) return fail("has text in a wrong place");
    tensors_.back().dtype = value;
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || name_ == kMetadata || field_ == kDtype || in_list_) {
      return fail("has a list in a wrong place");
    }
    in_list_ = true;
    num_items_ = 0;
    return true;
  }
  bool end_array() override {
    in_list_ = false;
    return field_ != kOffsets || num_items_ == 2 ? true : fail("needs two data_offsets");
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!in_list_) return fail("has a number in a wrong place");
    if (value > static_cast<std::uint64_t>(kMost)) return fail("has a number that is too large");
    TensorEntry& tensor = tensors_.back();
    const auto number = static_cast<std::int64_t>(value);
    if (field_ == kShape) {
      tensor.shape.push_back(number);
    } else if (num_items_ < 2) {
      (num_items_ == 0 ? tensor.begin : tensor.end) = number;
    }
    return ++num_items_ > kMostDimensions ? fail("has too many dimensions") : true;
  }
  bool number_integer(number_integer_t) override { return fail("has a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return fail("has a number that is not an integer");
  }
  bool null() override { return fail("holds null"); }
  bool boolean(bool) override { return fail("holds true or false"); }
  bool binary(binary_t&) override { return fail("holds binary data"); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    error_ = concat("the header is not valid JSON at its byte ", position);
    return false;
  }

 private:
  static constexpr unsigned kDtype = 1;
  static constexpr unsigned kShape = 2;
  static constexpr unsigned kOffsets = 4;
  static constexpr int kMostDimensions = 64;

  bool fail(const std::string& what) {
    error_ = has_name_ ? concat(name_, " in the header ", what) : concat("the header ", what);
    return false;
  }

  std::vector<TensorEntry>& tensors_;
  std::map<std::string, std::string>& metadata_;
  std::string error_;
  int depth_ = 0;
  bool has_name_ = false;
  bool has_metadata_ = false;
  bool in_list_ = false;
  int num_items_ = 0;
  unsigned field_ = 0;
  /// The fields of the tensor that have come.
  unsigned seen_ = 0;
  std::string name_;
  std::string key_;
};

/// Bytes of a tensor by its shape and the bytes of an element; empty if they are too many to count.
std::optional<std::int64_t> num_bytes_of(const std::vector<std::int64_t>& shape,
                                         std::int64_t element) {
  std::int64_t bytes = element;
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return bytes;
}

/// Throws for names that a reader refuses.
void check_names(const std::string& path, std::span<const TensorView> tensors) {
  std::set<std::string_view> names;
  for (const TensorView& tensor : tensors) {
    const char* const fault = tensor.name == kMetadata            ? "is the format's own"
                              : !names.insert(tensor.name).second ? "comes twice"
                                                                  : nullptr;
    if (fault == nullptr) continue;
    throw CheckpointError(concat(path, " cannot be written: the name ", tensor.name, " ", fault,
                                 "; rename a parameter or a buffer of the model"));
  }
}

std::string text_of_header(const std::string& path, std::span<const TensorView> tensors,
                           const std::map<std::string, std::string>& metadata) {
  check_names(path, tensors);
  // Appends without looking for the name, which would take quadratic time.
  nlohmann::ordered_json::object_t header;
  if (!metadata.empty()) header.emplace_back(kMetadata, metadata);
  std::int64_t end = 0;
  for (const TensorView& tensor : tensors) {
    if (num_bytes_of(tensor.shape, bytes_of_element(tensor.dtype)) != tensor.num_bytes) {
      throw std::logic_error(concat("write_safetensors: wrong size of ", tensor.name));
    }
    const std::int64_t begin = end;
    end += tensor.num_bytes;
    header.emplace_back(tensor.name,
                        nlohmann::ordered_json{{"dtype", tensor.dtype},
                                               {"shape", tensor.shape},
                                               {"data_offsets", std::array{begin, end}}});
  }
  std::string text;
  try {
    text = nlohmann::ordered_json(std::move(header)).dump();
  } catch (const nlohmann::json::type_error& error) {
    throw CheckpointError(concat(path, " cannot be written: a name is no UTF-8 (", error.what(),
                                 "); rename a parameter or a buffer of the model"));
  }
  // The values begin at a multiple of 8 bytes.
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (std::ssize(text) <= SafetensorsFile::kMostHeaderBytes) return text;
  throw CheckpointError(concat(path, " cannot be written: the names, types and places of its ",
                               tensors.size(), " pieces take ", text.size(), " bytes; at most ",
                               SafetensorsFile::kMostHeaderBytes,
                               " are read. Give the model fewer parameters or shorter names"));
}

}  // namespace

std::int64_t bytes_of_element(std::string_view dtype) {
  if (const auto bytes = element_size(dtype)) return *bytes;
  throw CheckpointError(concat("safetensors files have no type ", dtype));
}

SafetensorsFile::SafetensorsFile(std::string path, SymbolicLink link)
    : file_(std::move(path), link) {
  const auto refuse = [this](const std::string& why) {
    throw CheckpointError(concat(file_.path(), " is not a valid safetensors file: ", why));
  };
  std::uint64_t length = 0;
  if (file_.num_bytes() < kLengthBytes) refuse("it is shorter than 8 bytes");
  file_.read(&length, 0, kLengthBytes);
  const std::int64_t rest = file_.num_bytes() - kLengthBytes;
  if (length > static_cast<std::uint64_t>(rest)) {
    refuse(concat("its header would have ", length, " bytes, and the file has ", rest, " more"));
  }
  if (length > static_cast<std::uint64_t>(kMostHeaderBytes)) {
    refuse(concat("its header has ", length, " bytes; at most ", kMostHeaderBytes, " are read"));
  }
  std::string header(static_cast<std::size_t>(length), '\0');
  file_.read(header.data(), kLengthBytes, std::ssize(header));
  if (!header.starts_with('{')) refuse("its header does not begin with {");
  HeaderReader reader(tensors_, metadata_);
  if (!nlohmann::json::sax_parse(header, &reader)) refuse(reader.error());
  data_begin_ = kLengthBytes + std::ssize(header);
  std::ranges::stable_sort(
      tensors_, {}, [](const TensorEntry& tensor) { return std::pair(tensor.begin, tensor.end); });
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (!places_.emplace(tensors_[i].name, i).second) {
      refuse(concat(tensors_[i].name, " comes twice"));
    }
  }
  check_places();
}

void SafetensorsFile::check_places() const {
  const auto refuse = [this](const std::string& name, const std::string& why) {
    throw CheckpointError(
        concat(file_.path(), " is not a valid safetensors file: the tensor ", name, " ", why));
  };
  std::int64_t next = 0;
  for (const TensorEntry& tensor : tensors_) {
    const auto element = element_size(tensor.dtype);
    if (!element) refuse(tensor.name, concat("has the unknown type ", tensor.dtype));
    if (tensor.end < tensor.begin) refuse(tensor.name, "ends before it begins");
    if (tensor.begin != next) {
      refuse(tensor.name, tensor.begin < next ? "overlaps the one before" : "leaves a gap before");
    }
    const auto bytes = num_bytes_of(tensor.shape, *element);
    if (!bytes || *bytes != tensor.num_bytes()) {
      refuse(tensor.name, "has another size than its type and shape say");
    }
    next = tensor.end;
  }
  const std::int64_t present = file_.num_bytes() - data_begin_;
  if (present != next) {
    throw CheckpointError(concat(file_.path(), " is not a valid safetensors file: it has ", present,
                                 " bytes of values, and its header says ", next));
  }
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto place = places_.find(name);
  return place == places_.end() ? nullptr : &tensors_[place->second];
}

void SafetensorsFile::read(const TensorEntry& tensor, void* to) const {
  file_.read(to, data_begin_ + tensor.begin, tensor.num_bytes());
}

FileDigest write_safetensors(const std::string& path, std::vector<TensorView> tensors,
                             const std::map<std::string, std::string>& metadata) {
  // Wide elements first, so that the values of every tensor are aligned; Python's reader needs it.
  std::ranges::stable_sort(tensors, std::ranges::greater(),
                           [](const TensorView& tensor) { return bytes_of_element(tensor.dtype); });
  const std::string header = text_of_header(path, tensors, metadata);
  WholeFile file(path);
  Sha256 sha;
  FileDigest digest;
  const auto write = [&](const void* bytes, std::size_t count) {
    file.write(bytes, count);
    sha.update(bytes, count);
    digest.num_bytes += static_cast<std::int64_t>(count);
  };
  const auto length = static_cast<std::uint64_t>(header.size());
  write(&length, sizeof length);
  write(header.data(), header.size());
  for (const TensorView& tensor : tensors) {
    write(tensor.data, static_cast<std::size_t>(tensor.num_bytes));
  }
  file.keep(/*sync=*/true);
  digest.sha256 = sha.hex();
  return digest;
}

}  // namespace gossamer
