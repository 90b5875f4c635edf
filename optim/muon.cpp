#include "optim/rules/muon.hpp"

#include "base/text.hpp"
#include "optim/block_update.hpp"
#include "optim/sweep.hpp"

namespace gossamer {
namespace {

constexpr std::array<std::string_view, 1> kMomentum = {"momentum"};

}  // namespace

Muon::Muon(const Config& config)
    : config_(config),
      momentum_(make_rule_optimizer(MuonMomentumRule{config.momentum, config.nesterov})),
      step_(make_rule_optimizer(MuonStepRule{})) {}

std::span<const std::string_view> Muon::state_names() const { return kMomentum; }

PassTraffic Muon::least_traffic(std::int64_t step, DType model) const {
  const PassTraffic first = momentum_->least_traffic(step, model);
  const PassTraffic second = step_->least_traffic(step, model);
  const std::int64_t inbox = size_of(master_of(model));
  // The second sweep mixes nothing, and does not look at the gradients.
  return {.read = first.read + second.read - inbox - size_of(model),
          .changed = first.changed + second.changed,
          .written = first.written + second.written};
}

const Muon& Muon::of(const Segment& segment, const Muon& other) {
  return segment.optimizer == nullptr ? other : static_cast<const Muon&>(*segment.optimizer);
}

void Muon::enqueue(Stream& stream, std::vector<BlockUpdate> updates) const {
  for (BlockUpdate& update : updates) enqueue_one(stream, std::move(update));
}

void Muon::enqueue_one(Stream& stream, BlockUpdate update) const {
  const Buffer directions = stream.allocate(update.parameters.numel, update.parameters.dtype);
  BlockUpdate first = update;
  update.intake.exchange = split_off_sending(first.intake.exchange);
  first.states[1] = directions.block().data;
  for (Segment& segment : first.segments) {
    if (segment.optimizer != nullptr) segment.optimizer = of(segment, *this).momentum_.get();
  }
  enqueue_update(stream, *momentum_, std::move(first));

  orthogonalize_all(stream, update, directions.block());

  update.intake.keep = 1.0;
  update.intake.inboxes.clear();
  update.states = {directions.block().data};
  for (Segment& segment : update.segments) {
    if (segment.numel == 0) continue;
    const double scale =
        scale_of(of(segment, *this).config_.scale, segment.rows, segment.numel / segment.rows);
    segment.lr = segment.lr.value_or(update.lr) * scale;
    segment.weight_decay /= scale;
    segment.optimizer = nullptr;
  }
  enqueue_update(stream, *step_, std::move(update));
  stream.keep(directions.owner());
}

void Muon::orthogonalize_all(Stream& stream, const BlockUpdate& update,
                             const Block& directions) const {
  for (const Segment& segment : update.segments) {
    if (segment.numel == 0) continue;
    if (segment.rows <= 0 || segment.numel % segment.rows != 0) {
      throw std::logic_error(
          concat("Muon: a segment of ", segment.numel, " elements is no whole matrix"));
    }
    if (segment.gradient.data == nullptr) continue;
    const MatrixBlock matrix{.block = part_of(directions, segment.offset, segment.numel),
                             .rows = segment.rows,
                             .cols = segment.numel / segment.rows};
    const NewtonSchulz how = of(segment, *this).config_.newton_schulz;
    if (!stream.on_host()) {
      // In a step that is left out the result is not used.
      if (update.orthogonalize == nullptr) {
        throw std::logic_error("Muon: a GPU needs somebody else's products of matrices");
      }
      (*update.orthogonalize)(matrix, how);
      continue;
    }
    stream.run(
        [matrix, how, simd = update.simd, decision = update.decision, own = update.orthogonalize] {
          if (decision != nullptr && decision->apply == 0) return;
          if (own != nullptr) return (*own)(matrix, how);
          orthogonalize(matrix, how, simd);
        });
  }
}

}  // namespace gossamer
