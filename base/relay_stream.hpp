#pragma once
// A RelayStream passes all work on to another stream, and the other stream may change. LibTorch's
// current stream is an example: the user may switch it at any time. Order holds across a change:
// work given after it waits for all work given before.
//
// The RelayStream does not protect memory of a caching allocator. Such an allocator may reuse a
// block as soon as the block's own stream is past it, while work on the new stream still needs the
// block. The owner of such memory must prevent the reuse.
//
// Thread safety: one thread at a time. A thread may hand the RelayStream over to another thread.

#include <functional>
#include <memory>
#include <vector>

#include "base/stream.hpp"

namespace gossamer {

class RelayStream : public Stream {
 public:
  /// `first` must outlive this object.
  explicit RelayStream(Stream& first) : current_(&first), used_{&first} {}

  /// Passes all later work on to `next`, which must be on the same device and outlive this object.
  /// Does nothing if `next` is the current stream. Throws std::logic_error for a stream on another
  /// device, and the error of an earlier stream that has ended with one.
  void set_current(Stream& next);
  [[nodiscard]] const Stream& current() const { return *current_; }

  [[nodiscard]] Device device() const override { return current_->device(); }
  [[nodiscard]] bool immediate() const override { return current_->immediate(); }
  [[nodiscard]] bool on_host() const override { return current_->on_host(); }
  [[nodiscard]] void* native() const override { return current_->native(); }
  void enter() override { current_->enter(); }
  void run(std::function<void()> work) override { current_->run(std::move(work)); }
  EventPtr record() override;
  void wait(EventPtr event) override { current_->wait(std::move(event)); }
  void copy(const Block& to, const ConstBlock& from) override { current_->copy(to, from); }
  void zero(const Block& block) override { current_->zero(block); }
  Buffer allocate(std::int64_t numel, DType dtype) override {
    return current_->allocate(numel, dtype);
  }
  Buffer allocate_host(std::int64_t numel, DType dtype) override {
    return current_->allocate_host(numel, dtype);
  }
  void keep(std::shared_ptr<void> owner) override { current_->keep(std::move(owner)); }
  void synchronize() override;
  void check() override;

 private:
  Stream* current_;
  /// All streams that have received work; each may have ended with an error.
  std::vector<Stream*> used_;
};

}  // namespace gossamer
