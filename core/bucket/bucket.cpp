#include "core/bucket/bucket.hpp"

#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/text.hpp"
#include "optim/convert.hpp"

namespace gossamer {
namespace {

/// The optimizer of a bucket's parameters, where `base` is the pipeline's.
const Optimizer& optimizer_of(const BucketSpec& spec, std::span<const ParameterInfo> parameters,
                              const Optimizer& base) {
  if (spec.entries.empty()) return base;
  const auto first = static_cast<std::size_t>(spec.entries.front().parameter);
  const Optimizer* const own = parameters[first].optimizer.get();
  return own == nullptr || same_kind(*own, base) ? base : *own;
}

/// Waits for the stream.
GradientDecision read_decision(Stream& stream, const GradientDecision* decision) {
  GradientDecision found;
  if (stream.on_host()) {
    stream.synchronize();
    return *decision;
  }
  constexpr std::int64_t kBytes = sizeof(GradientDecision);
  const Buffer host = stream.allocate_host(kBytes, DType::kUInt8);
  stream.copy(host.block(), ConstBlock(decision, kBytes, DType::kUInt8, stream.device()));
  stream.synchronize();
  std::memcpy(&found, host.block().data, sizeof(found));
  return found;
}

}  // namespace

Bucket::Bucket(std::int64_t index, BucketSpec spec, std::span<const ParameterInfo> parameters,
               Memory memory, const Optimizer& optimizer, Stream& stream)
    : index_(index),
      spec_(std::move(spec)),
      shard_{.first = 0, .numel = spec_.numel},
      memory_(std::move(memory)),
      optimizer_(optimizer_of(spec_, parameters, optimizer)),
      stream_(stream) {
  const auto fits = [&stream](const Block& found, DType dtype, std::int64_t numel) {
    return found.numel == numel && found.dtype == dtype && found.device == stream.device();
  };
  const Block block = memory_.model.parameters.block();
  const Block rounded = memory_.model.rounded.block();
  if (!fits(block, spec_.dtype, spec_.numel) ||
      (spec_.has_master() && !fits(rounded, spec_.model_dtype, spec_.numel)) ||
      (!spec_.has_master() && rounded.data != nullptr)) {
    throw std::logic_error("Bucket: the memory does not fit the plan");
  }
  for (const std::string_view name : optimizer_.state_names()) add_state(name);
  for (const BucketEntry& entry : spec_.entries) {
    const ParameterInfo& info = parameters[static_cast<std::size_t>(entry.parameter)];
    slots_.push_back({.name = info.name,
                      .parameter = part_of(block, entry.offset, info.numel()),
                      .offset = entry.offset,
                      .rows = info.shape.size() < 2 ? 0 : info.shape.front(),
                      .weight_decay = info.weight_decay,
                      .lr_factor = info.lr_factor,
                      .optimizer = info.optimizer});
    if (info.optimizer) require_same_kind(*info.optimizer, info.name);
  }
}

std::vector<std::int64_t> Bucket::shard_borders() const {
  std::vector<std::int64_t> borders;
  if (!optimizer_.needs_matrices()) return borders;
  for (const Slot& slot : slots_) borders.push_back(slot.offset);
  return borders;
}

Buffer Bucket::add_state(std::string_view name) {
  states_.push_back({std::string(name), stream_.allocate(shard_.numel, spec_.dtype)});
  return states_.back().buffer;
}

void Bucket::keep_shard(const Shard& shard) {
  const Shard kept = part_within(shard_, shard);
  for (NamedState& state : states_) {
    const Buffer old = std::exchange(state.buffer, stream_.allocate(shard.numel, spec_.dtype));
    if (kept.numel == 0) continue;
    stream_.copy(part_of(state.buffer.block(), kept.first - shard.first, kept.numel),
                 part_of(old.block(), kept.first - shard_.first, kept.numel));
    stream_.keep(old.owner());
  }
  shard_ = shard;
}

Buffer Bucket::state(std::string_view name) const {
  for (const NamedState& state : states_) {
    if (state.name == name) return state.buffer;
  }
  return {};
}

std::vector<Buffer> Bucket::states() const {
  std::vector<Buffer> buffers;
  for (const NamedState& state : states_) buffers.push_back(state.buffer);
  return buffers;
}

void Bucket::visit_updates(StateVisitor& visitor) {
  for (Slot& slot : slots_) visitor.number(concat(slot.name, "/updates"), slot.num_updates);
}

void Bucket::drop_added_states() { states_.resize(optimizer_.state_names().size()); }

void Bucket::offer(std::int64_t entry, ConstBlock gradient) {
  Slot& slot = slots_.at(static_cast<std::size_t>(entry));
  if (gradient.numel != slot.parameter.numel || gradient.dtype != spec_.model_dtype) {
    throw std::logic_error(concat("the gradient of ", slot.name, " has another size or type"));
  }
  if (gradient.data == nullptr) {
    if (gradient.numel > 0)
      throw std::logic_error(concat("the gradient of ", slot.name, " is null"));
    // An empty gradient may have null data. Elsewhere null data means that there is no gradient, so
    // give the empty gradient an address.
    gradient.data = slot.parameter.data;
  }
  if (is_updated_ || slot.gradient.data != nullptr) {
    throw std::logic_error(
        concat("parameter ", slot.name, " got a second gradient in one step; call ",
               "set_accumulate_grad(true) before every backward but the last of a step"));
  }
  slot.gradient = gradient;
  slot.offered = gradient;
  ++num_arrived_;
}

void Bucket::set_settings(std::int64_t entry, ParameterSettings settings) {
  Slot& slot = slots_.at(static_cast<std::size_t>(entry));
  if (settings.optimizer) require_same_kind(*settings.optimizer, slot.name);
  slot.settings = std::move(settings);
}

void Bucket::require_same_kind(const Optimizer& own, const std::string& parameter) const {
  if (same_kind(own, optimizer_)) return;
  throw std::logic_error(
      concat("the optimizer for ", parameter, " has another rule than its bucket's"));
}

void Bucket::replace_gradient(std::int64_t entry, ConstBlock gradient) {
  slots_.at(static_cast<std::size_t>(entry)).gradient = gradient;
  has_replaced_ = true;
}

void Bucket::keep_replaced_gradients() {
  if (!has_replaced_) return;
  for (Slot& slot : slots_) {
    if (slot.gradient.data == nullptr) continue;
    Buffer kept = stream_.allocate(slot.gradient.numel, slot.gradient.dtype);
    stream_.copy(kept.block(), slot.gradient);
    slot.gradient = kept.block();
    kept_gradients_.push_back(std::move(kept));
  }
}

void Bucket::drop_kept_gradients() {
  // An update may still read them.
  for (Buffer& kept : kept_gradients_) stream_.keep(kept.owner());
  kept_gradients_.clear();
}

void Bucket::restore_gradients() {
  for (Slot& slot : slots_) slot.gradient = slot.offered;
  has_replaced_ = false;
  drop_kept_gradients();
}

std::vector<Segment> Bucket::segments() const {
  std::vector<Segment> segments;
  segments.reserve(slots_.size());
  for (const Slot& slot : slots_) {
    const Shard piece = piece_of(slot);
    segments.push_back({.offset = piece.first - shard_.first,
                        .numel = piece.numel,
                        .gradient = slot.gradient,
                        .step = slot.num_updates + 1,
                        .weight_decay = slot.weight_decay,
                        .rows = slot.rows});
  }
  return segments;
}

std::vector<Segment> Bucket::own_segments(const BlockUpdate& update) const {
  std::vector<Segment> all = segments();
  for (std::size_t entry = 0; entry < slots_.size(); ++entry) {
    const std::optional<ParameterSettings>& own = slots_[entry].settings;
    Segment& segment = all[entry];
    segment.optimizer = slots_[entry].optimizer.get();
    if (slots_[entry].lr_factor != 1.0) segment.lr = update.lr * slots_[entry].lr_factor;
    if (!own) continue;
    segment.weight_decay = own->weight_decay;
    segment.lr = own->lr * update.intake.update_scale;
    if (!own->optimizer) continue;
    segment.optimizer = own->optimizer.get();
    stream_.keep(std::const_pointer_cast<Optimizer>(own->optimizer));
  }
  return all;
}

void Bucket::update(BlockUpdate update) {
  enqueue_update(stream_, optimizer_, begin_update(std::move(update)));
}

BlockUpdate Bucket::begin_update(BlockUpdate update) {
  update.parameters = part_of(parameters().block(), shard_);
  if (spec_.has_master()) update.rounded = part_of(memory_.model.rounded.block(), shard_);
  for (std::size_t k = 0; k < optimizer_.state_names().size(); ++k) {
    update.states[k] = states_[k].buffer.block().data;
  }
  update.lr *= update.intake.update_scale;
  update.segments = own_segments(update);
  for (Slot& slot : slots_) {
    slot.counted = slot.gradient.data != nullptr;
    if (slot.counted) ++slot.num_updates;
    slot.gradient = {};
  }
  if (!optimizer_.has_rule()) {
    own_update_ = update;
    own_update_.intake.exchange = split_off_sending(update.intake.exchange);
  }
  is_updated_ = true;
  return update;
}

ExternalStep Bucket::external_step() {
  ExternalStep step{.bucket = index_,
                    .parameters = own_update_.parameters,
                    .segments = own_update_.segments,
                    .lr = own_update_.lr,
                    .update_scale = own_update_.intake.update_scale};
  if (own_update_.decision != nullptr) step.decision = read_decision(stream_, own_update_.decision);
  stream_.synchronize();
  return step;
}

void Bucket::finish_external_step() {
  write_rounded();
  BlockUpdate sending = std::exchange(own_update_, {});
  if (sending.intake.exchange.is_empty()) return;
  // The inboxes are mixed in, and the rule has used the gradients.
  sending.rounded = {};
  sending.decision = nullptr;
  sending.intake.keep = 1.0;
  sending.intake.inboxes.clear();
  for (Segment& segment : sending.segments) segment.gradient = {};
  enqueue_update(stream_, optimizer_, std::move(sending));
}

void Bucket::write_rounded() {
  if (!spec_.has_master()) return;
  enqueue_convert(stream_, memory_.model.rounded.block(), parameters().block());
}

void Bucket::begin_step() {
  num_arrived_ = 0;
  is_ready_ = false;
  is_updated_ = false;
  has_replaced_ = false;
  for (Slot& slot : slots_) slot.offered = {};
  drop_kept_gradients();
  last_own_gradients_ = std::exchange(own_gradients_, {});
}

void Bucket::rollback_update() {
  for (Slot& slot : slots_) {
    if (std::exchange(slot.counted, false)) --slot.num_updates;
  }
}

void Bucket::visit(StateVisitor& visitor) {
  if (!holds_all()) throw std::logic_error("Bucket: only a shard of the states is here");
  for (std::int64_t entry = 0; entry < num_entries(); ++entry) {
    Slot& slot = slots_[static_cast<std::size_t>(entry)];
    visit_block(visitor, stream_, slot.name, slot.parameter);
    for (const NamedState& state : states_) {
      visit_block(visitor, stream_, concat(slot.name, "/", state.name),
                  part(state.buffer.block(), entry));
    }
    visitor.number(concat(slot.name, "/updates"), slot.num_updates);
  }
  if (visitor.loads()) write_rounded();
}

void visit_block(StateVisitor& visitor, Stream& stream, const std::string& name,
                 const Block& block) {
  if (stream.immediate()) return visitor.block(name, block);
  const Buffer seen = stream.allocate_host(block.numel, block.dtype);
  if (!visitor.loads()) {
    stream.copy(seen.block(), block);
    stream.synchronize();
  }
  visitor.block(name, seen.block());
  if (!visitor.loads()) return;
  stream.copy(block, seen.block());
  stream.synchronize();
}

}  // namespace gossamer
