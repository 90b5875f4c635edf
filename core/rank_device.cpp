#include "core/rank_device.hpp"

#include <utility>

#include "base/make_stream.hpp"
#include "comm/nccl_communicator.hpp"
#include "comm/staged_communicator.hpp"

namespace gossamer {
namespace {

std::unique_ptr<Communicator> make_communicator(std::shared_ptr<Stream> exchanges,
                                                Communicator& host,
                                                const RankDevice::Wires& wires) {
  if (wires.nccl != nullptr) {
    return make_nccl_communicator(*wires.nccl, host, std::move(exchanges), {wires.timeout_s});
  }
  return make_staged_communicator(host, std::move(exchanges), {.direct_messages = wires.direct});
}

}  // namespace

RankDevice::RankDevice(Device device, Communicator& host)
    : own_compute_(make_stream(device)), compute_(own_compute_.get()), communicator_(&host) {
  if (device.type == DeviceType::kCpu) return;
  own_communicator_ = make_staged_communicator(host, make_stream(device, StreamPriority::kHigh));
  communicator_ = own_communicator_.get();
}

RankDevice::RankDevice(Stream& compute, std::shared_ptr<Stream> exchanges, Communicator& host,
                       const Wires& wires)
    : own_communicator_(make_communicator(std::move(exchanges), host, wires)),
      compute_(&compute),
      communicator_(own_communicator_.get()) {}

}  // namespace gossamer
