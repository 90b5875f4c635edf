#include "gossamer/core/base/relay_stream.hpp"

#include <algorithm>
#include <exception>
#include <stdexcept>

namespace gossamer {

void RelayStream::follow(Stream& next) {
  if (&next == current_) return;
  if (next.device() != device()) {
    throw std::logic_error("RelayStream::follow: the stream is on another device");
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
  // One that has ended with an error says nothing about what the others still have to do.
  std::exception_ptr error;
  for (Stream* stream : used_) {
    try {
      stream->synchronize();
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

void RelayStream::check() {
  for (Stream* stream : used_) stream->check();
}

}  // namespace gossamer
