#include "base/relay_stream.hpp"

#include <algorithm>
#include <stdexcept>

namespace gossamer {

void RelayStream::set_current(Stream& next) {
  if (&next == current_) return;
  if (next.device() != device()) {
    throw std::logic_error("RelayStream::set_current: the stream is on another device");
  }
  next.wait(record());
  if (std::ranges::find(used_, &next) == used_.end()) used_.push_back(&next);
  current_ = &next;
}

EventPtr RelayStream::record() {
  check();
  return current_->record();
}

void RelayStream::synchronize() {
  try {
    // The current stream has waited for all streams before it.
    current_->synchronize();
  } catch (...) {
    // After an error the current stream may not have waited, so wait for every stream.
    for (Stream* stream : used_) {
      const SynchronizedScope scope(*stream);
    }
    throw;
  }
  check();
}

void RelayStream::check() {
  for (Stream* stream : used_) stream->check();
}

}  // namespace gossamer
