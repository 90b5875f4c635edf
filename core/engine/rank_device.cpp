#include "gossamer/core/engine/rank_device.hpp"

#include "gossamer/comm/nccl_communicator.hpp"
#include "gossamer/comm/staged_communicator.hpp"
#include "gossamer/core/base/make_stream.hpp"

namespace gossamer {

RankDevice::RankDevice(Device device, Communicator& host)
    : own_compute_(make_stream(device)), compute_(own_compute_.get()), communicator_(&host) {
  if (device.type == DeviceType::kCpu) return;
  own_copies_ = make_stream(device);
  own_communicator_ = make_staged_communicator(host, *own_copies_);
  communicator_ = own_communicator_.get();
}

RankDevice::RankDevice(Stream& compute, Stream& exchanges, Communicator& host, NcclApi* nccl,
                       double timeout_s)
    : own_communicator_(nccl != nullptr
                            ? make_nccl_communicator(*nccl, host, exchanges, {timeout_s})
                            : make_staged_communicator(host, exchanges)),
      compute_(&compute),
      communicator_(own_communicator_.get()) {}

}  // namespace gossamer
