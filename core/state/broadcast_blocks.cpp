#include "core/state/broadcast_blocks.hpp"

#include <algorithm>
#include <deque>
#include <utility>

namespace gossamer {
namespace {

/// Parts of blocks, as bytes, that travel in one operation.
struct Parcel {
  std::vector<Block> parts;
  std::int64_t bytes = 0;
};

std::vector<Parcel> parcels_of(const std::vector<Block>& blocks) {
  std::vector<Parcel> parcels;
  for (const Block& block : blocks) {
    const Block bytes{block.data, block.bytes(), DType::kUInt8, block.device};
    for (std::int64_t first = 0; first < bytes.numel;) {
      if (parcels.empty() || parcels.back().bytes == kBroadcastBytes) parcels.emplace_back();
      Parcel& parcel = parcels.back();
      const std::int64_t count = std::min(bytes.numel - first, kBroadcastBytes - parcel.bytes);
      parcel.parts.push_back(part_of(bytes, first, count));
      parcel.bytes += count;
      first += count;
    }
  }
  return parcels;
}

/// A parcel on its way.
class Delivery {
 public:
  Delivery(Communicator& communicator, Stream& stream, const Parcel& parcel, int root)
      : communicator_(communicator),
        stream_(stream),
        parcel_(parcel),
        sends_(communicator.rank() == root),
        packed_(stream.allocate(parcel.bytes, DType::kUInt8)) {
    if (sends_) {
      for_each_part([&](const Block& part, const Block& place) { stream.copy(place, part); });
      stream.keep(packed_.owner());
    }
    request_ = communicator.broadcast(packed_.block(), root,
                                      {.label = {.what = "broadcast of the model"},
                                       .owner = packed_.owner(),
                                       .ready = stream.record()});
  }

  void finish() {
    request_.wait_on(stream_);
    if (sends_) return;
    for_each_part([&](const Block& part, const Block& place) { stream_.copy(part, place); });
    stream_.keep(packed_.owner());
  }

 private:
  template <class Work>
  void for_each_part(const Work& work) const {
    std::int64_t first = 0;
    for (const Block& part : parcel_.parts) {
      work(part, part_of(packed_.block(), first, part.numel));
      first += part.numel;
    }
  }

  Communicator& communicator_;
  Stream& stream_;
  const Parcel& parcel_;
  bool sends_;
  Buffer packed_;
  Request request_;
};

}  // namespace

void broadcast_blocks(Communicator& communicator, Stream& stream, const std::vector<Block>& blocks,
                      int root) {
  if (communicator.size() == 1) return stream.synchronize();
  constexpr std::size_t kMostUnderWay = 8;
  const std::vector<Parcel> parcels = parcels_of(blocks);
  {
    // The blocks are the caller's again, also after an error.
    const SynchronizedScope scope(stream);
    std::deque<Delivery> under_way;
    for (const Parcel& parcel : parcels) {
      if (under_way.size() == kMostUnderWay) {
        under_way.front().finish();
        under_way.pop_front();
      }
      under_way.emplace_back(communicator, stream, parcel, root);
    }
    for (Delivery& delivery : under_way) delivery.finish();
  }
  // A GPU's stream goes on when an exchange is aborted, so ask the communicator for its error.
  communicator.check();
}

}  // namespace gossamer
