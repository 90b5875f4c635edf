#pragma once
// Saves the state that a StateVisitor sees into a safetensors file, and loads it back. Blocks
// become tensors of one dimension, numbers become tensors without dimensions (F64 or I64).
//
// Not thread safe; write() may run on another thread while no thread changes the snapshot.

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/state_visitor.hpp"
#include "core/checkpoint/safetensors.hpp"

namespace gossamer {

/// A copy of the state in memory. Training may go on while write() saves the copy.
class StateSnapshot : public StateVisitor {
 public:
  [[nodiscard]] bool loads() const override { return false; }
  [[nodiscard]] bool holds(const std::string& /*name*/) const override { return false; }
  void block(const std::string& name, const Block& block) override;
  void number(const std::string& name, double& value) override;
  void number(const std::string& name, std::int64_t& value) override;

  /// Forgets the state, and keeps its memory for the next state.
  void clear() { num_pieces_ = 0; }
  [[nodiscard]] std::int64_t num_bytes() const;
  /// The state, in the snapshot's memory. Throws CheckpointError if a name comes twice.
  [[nodiscard]] std::vector<TensorView> tensors() const;
  /// Writes the file. Throws CheckpointError, also if a name comes twice.
  FileDigest write(const std::string& path,
                   const std::map<std::string, std::string>& metadata = {}) const;

 private:
  struct Piece {
    std::string name;
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::unique_ptr<std::byte[]> bytes;
    std::int64_t num_bytes = 0;
    std::int64_t capacity = 0;
  };

  void add(const std::string& name, std::string_view dtype, std::vector<std::int64_t> shape,
           const void* data, std::int64_t num_bytes);

  /// The first num_pieces_ pieces belong to the state; the other pieces are memory for the next
  /// state.
  std::vector<Piece> pieces_;
  std::size_t num_pieces_ = 0;
};

/// Loads state from a file, or from memory.
class StateLoader : public StateVisitor {
 public:
  /// `source` and `may_lack` must outlive the loader. What the source lacks of the names that begin
  /// with one of `may_lack` stays as it is.
  explicit StateLoader(const TensorSource& source, std::span<const std::string_view> may_lack = {})
      : source_(source), may_lack_(may_lack) {}

  [[nodiscard]] bool loads() const override { return true; }
  [[nodiscard]] bool holds(const std::string& name) const override {
    return source_.find(name) != nullptr;
  }
  /// Throws CheckpointError if the source has no tensor of this name, type and size.
  void block(const std::string& name, const Block& block) override;
  void number(const std::string& name, double& value) override;
  void number(const std::string& name, std::int64_t& value) override;

  /// Throws CheckpointError if the source has a tensor that no visitor has asked for. Names that
  /// begin with one of `of_others` are not counted: other readers ask for these.
  void check_all_loaded(std::span<const std::string_view> of_others = {}) const;

 private:
  void read(const std::string& name, std::string_view dtype, std::size_t num_dimensions,
            std::int64_t num_bytes, void* to);

  const TensorSource& source_;
  std::span<const std::string_view> may_lack_;
  std::set<std::string> loaded_;
};

}  // namespace gossamer
