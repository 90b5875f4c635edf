#include "gossamer/core/engine/rank_device.hpp"

#include "gossamer/comm/staged_communicator.hpp"
#include "gossamer/core/base/make_stream.hpp"

namespace gossamer {

RankDevice::RankDevice(Device device, Communicator& host)
    : own_compute_(make_stream(device)), compute_(own_compute_.get()), communicator_(&host) {
  if (device.type == DeviceType::kCpu) return;
  own_copies_ = make_stream(device);
  staged_ = make_staged_communicator(host, *own_copies_);
  communicator_ = staged_.get();
}

RankDevice::RankDevice(Stream& compute, Stream& copies, Communicator& host)
    : staged_(make_staged_communicator(host, copies)),
      compute_(&compute),
      communicator_(staged_.get()) {}

}  // namespace gossamer
