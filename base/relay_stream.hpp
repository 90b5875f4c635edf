#pragma once
// A stream that passes on what it is given to another one, which may change: LibTorch's current
// stream, for example, which its user may switch at any time. Order holds across the change: what
// is given afterwards waits for all that was given before.
//
// Work may have been given memory that the stream before will use again by itself (a caching
// allocator's); whoever owns that memory has to see to it.
//
// Thread safety: one thread at a time, and those that it hands over to.

#include <functional>
#include <memory>
#include <vector>

#include "base/stream.hpp"

namespace gossamer {

class RelayStream : public Stream {
 public:
  /// `first` outlives this.
  explicit RelayStream(Stream& first) : current_(&first), used_{&first} {}

  /// Passes everything on to `next`, which is on the same device and outlives this. Nothing happens
  /// if it does so already. Throws std::logic_error for another device, and what has ended the
  /// stream before.
  void follow(Stream& next);
  [[nodiscard]] const Stream& current() const { return *current_; }

  [[nodiscard]] Device device() const override { return current_->device(); }
  [[nodiscard]] bool immediate() const override { return current_->immediate(); }
  [[nodiscard]] bool on_host() const override { return current_->on_host(); }
  [[nodiscard]] void* native() const override { return current_->native(); }
  void enter() override { current_->enter(); }
  void run(std::function<void()> work) override { current_->run(std::move(work)); }
  StreamHold hold() override { return current_->hold(); }
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
  /// All that it has passed work on to; each may have ended with an error.
  std::vector<Stream*> used_;
};

}  // namespace gossamer
