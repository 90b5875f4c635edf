#pragma once
// A bucket plan says which parameter lies where. It takes the parameters in the order in which
// their gradients arrive and cuts that order into buckets. A plan is pure data and must be the same
// on every rank; agree() checks this.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.hpp"
#include "comm/communicator.hpp"
#include "optim/optimizer.hpp"

namespace gossamer {

/// Up to ten names of a list, for a message.
std::string list_of(std::vector<std::string> names);

struct ParameterInfo {
  std::string name;
  std::vector<std::int64_t> shape;
  /// The type that the model computes with: float32, float64 or bfloat16. A bfloat16 parameter has
  /// a float32 master copy.
  DType dtype = DType::kFloat32;
  double weight_decay = 0.0;
  /// The learning rate is multiplied by this factor (ParameterGroup::lr_factor).
  double lr_factor = 1.0;
  /// The parameter's optimizer; null: the pipeline's optimizer. Either all parameters name an
  /// optimizer, or none does.
  std::shared_ptr<const Optimizer> optimizer = {};

  [[nodiscard]] std::int64_t numel() const;
};

struct BucketEntry {
  /// Index into the declared parameters.
  std::int64_t parameter = 0;
  /// Elements from the beginning of the block; a multiple of 128 bytes.
  std::int64_t offset = 0;
};

struct BucketSpec {
  /// The type in which parameters are kept, mixed and exchanged.
  DType dtype = DType::kFloat32;
  /// The type of the model's parameters and gradients. Differs from `dtype` where the bucket holds
  /// master copies.
  DType model_dtype = DType::kFloat32;
  std::vector<BucketEntry> entries = {};
  /// Elements of the block: the sum of the parameters' sizes, each rounded up to 128 bytes.
  std::int64_t numel = 0;

  [[nodiscard]] std::int64_t bytes() const { return numel * size_of(dtype); }
  [[nodiscard]] bool has_master() const { return dtype != model_dtype; }
};

struct BucketPlan {
  std::vector<BucketSpec> buckets;
  [[nodiscard]] std::int64_t bytes() const;
};

/// Cuts `order` (indices of parameters, as their gradients arrived) into buckets. A bucket closes
/// with the parameter that makes its size reach `limit_bytes`. A bucket holds one dtype, and
/// parameters whose optimizers are of one kind.
/// Parameters that are not in `order` follow in buckets of their own. Throws
/// std::logic_error for an index that is unknown or comes twice.
BucketPlan plan_buckets(std::span<const ParameterInfo> parameters,
                        std::span<const std::int64_t> order, std::int64_t limit_bytes);

/// Throws ConfigError if an optimizer with needs_matrices() is to update parameters that are no
/// matrices. `optimizer` is the pipeline's.
void check_matrices(std::span<const ParameterInfo> parameters, const Optimizer& optimizer);

/// A table for people: bucket, parameters, elements, bytes.
std::string describe(const BucketPlan& plan, std::span<const ParameterInfo> parameters);

/// Collective. Checks that all ranks give the same `lines`. Otherwise every rank throws
/// ConfigError. The message says that the ranks differ in `what`, and quotes the first line that
/// differs between rank 0 and the first other rank. A rank gets hashes. Only where they differ, it
/// gets the text of rank 0 and the text of the first rank that differs.
void agree(Communicator& communicator, std::string_view what, const std::string& lines);
/// Collective. Like agree(), but only a rank that differs from rank 0 throws, so the others can go
/// on without it.
void agree_with_first(Communicator& communicator, std::string_view what, const std::string& lines);

/// A hash by which ranks compare texts.
std::string digest_of(std::string_view text);
/// Collective. Returns the digest_of() the text of each rank, in rank order. A rank that gathers
/// the texts themselves needs memory for one text of each rank.
std::vector<std::string> gather_digests(Communicator& communicator, const std::string& text);

/// Collective. Returns the texts of all ranks in rank order, each of them once. Long texts are the
/// same on most ranks, so ranks compare hashes before they send texts.
std::vector<std::string> gather_distinct(Communicator& communicator, const std::string& text);

/// One line per parameter: name, shape, dtype.
std::string describe(std::span<const ParameterInfo> parameters);

}  // namespace gossamer
