#include "comm/device/rank_device.hpp"

#include "base/make_stream.hpp"
#include "comm/collectives/staged_communicator.hpp"

namespace gossamer {

RankDevice::RankDevice(Device device, Communicator& host)
    : compute_(make_stream(device)), communicator_(&host) {
  if (device.type == DeviceType::kCpu) return;
  staged_ = make_staged_communicator(host, make_stream(device, StreamPriority::kHigh));
  communicator_ = staged_.get();
}

}  // namespace gossamer
