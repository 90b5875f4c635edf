#pragma once
// A stream whose work runs on the host. stream.hpp has the protocol, its errors and thread safety.

#include <cstdint>
#include <functional>
#include <memory>

#include "base/stream.hpp"

namespace gossamer {

/// Does work at once, on the calling thread. Errors leave the call that gave the work.
class InlineStream : public Stream {
 public:
  [[nodiscard]] Device device() const override { return {}; }
  [[nodiscard]] bool immediate() const override { return true; }
  [[nodiscard]] bool on_host() const override { return true; }
  void run(std::function<void()> work) override { work(); }
  EventPtr record() override { return nullptr; }
  void wait(EventPtr event) override {
    if (event) event->wait();
  }
  void copy(const Block& to, const ConstBlock& from) override;
  void zero(const Block& block) override;
  Buffer allocate(std::int64_t numel, DType dtype) override { return {numel, dtype}; }
  Buffer allocate_host(std::int64_t numel, DType dtype) override { return {numel, dtype}; }
  void keep(std::shared_ptr<void>) override {}
  void synchronize() override {}
  void check() override {}
};

}  // namespace gossamer
