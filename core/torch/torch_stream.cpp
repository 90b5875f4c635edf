#include "core/torch/torch_stream.hpp"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <torch/types.h>

#include "base/error.hpp"
#include "base/make_stream.hpp"
#include "base/text.hpp"
#ifdef GOSSAMER_HAVE_CUDA
#include "base/cuda_stream.hpp"
#endif

namespace gossamer {
namespace {

#ifdef GOSSAMER_HAVE_CUDA
/// Memory of LibTorch's caching allocator, which counts it as its own.
Buffer allocate_with_torch(std::int64_t numel, DType dtype, Device device) {
  const Block block{nullptr, numel, dtype, device};
  const torch::Tensor tensor = torch::empty(
      {block.bytes()}, torch::TensorOptions(torch_device(device)).dtype(torch::kUInt8));
  const auto owner = std::make_shared<torch::Tensor>(tensor);
  return {owner, {tensor.data_ptr(), numel, dtype, device}};
}

/// The stream on which LibTorch computes on a GPU in this thread.
void* current_native(Device device) {
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  return guard.getStream(torch_device(device)).native_handle();
}

std::shared_ptr<Stream> stream_on(Device device, void* native) {
  return std::make_shared<CudaStream>(
      CudaStreamOptions{.device = device.index,
                        .native = native,
                        .allocate = [device](std::int64_t numel, DType dtype) {
                          return allocate_with_torch(numel, dtype, device);
                        }});
}
#endif

std::shared_ptr<Stream> first_stream(Device device) {
  use_torch_device(device);
#ifdef GOSSAMER_HAVE_CUDA
  if (device.type == DeviceType::kCuda) return stream_on(device, current_native(device));
#endif
  return make_stream(device);
}

}  // namespace

c10::Device torch_device(Device device) {
  if (device.type == DeviceType::kCpu) return {c10::kCPU};
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(device.index)};
}

Device device_of(const c10::Device& device) {
  if (device.is_cpu()) return {};
  if (device.is_cuda()) return {DeviceType::kCuda, device.index()};
  throw ConfigError(concat("a model on ", device.str(), ", allowed: cpu, cuda"));
}

void load_torch_cuda() {
#ifdef GOSSAMER_HAVE_CUDA
  // The library registers what it can do. Loading it twice does nothing.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    const char* const reason = dlerror();
    throw ConfigError(
        concat("LibTorch's CUDA library cannot be loaded: ",
               reason == nullptr ? "no reason given" : reason,
               "; install torch with all that it needs (scripts/setup.sh --gpu, or pip install "
               "torch)"));
  }
  if (!at::detail::getCUDAHooks().hasCUDART()) {
    throw ConfigError(
        "LibTorch was used before its CUDA library was loaded, and so computes on processors "
        "alone; call gossamer::load_torch_cuda() first in the program, or link the program with "
        "libtorch_cuda.so");
  }
#endif
}

void use_torch_device(Device device) {
  if (device.type == DeviceType::kCpu) return;
  // Says what is wrong where there is no such GPU.
  static_cast<void>(make_stream(device));
#ifdef GOSSAMER_HAVE_CUDA
  load_torch_cuda();
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  guard.setDevice(torch_device(device));
#endif
}

TorchStream::TorchStream(Device device) : TorchStream(device, first_stream(device)) {}

TorchStream::TorchStream(Device device, std::shared_ptr<Stream> first)
    : RelayStream(*first), device_(device) {
  void* const native = first->native();
  streams_.emplace(native, std::move(first));
}

void TorchStream::keep_for_current([[maybe_unused]] const at::Tensor& tensor) {
#ifdef GOSSAMER_HAVE_CUDA
  if (device_.type == DeviceType::kCpu) return;
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  tensor.record_stream(guard.getStream(torch_device(device_)));
#endif
}

void TorchStream::follow_current() {
#ifdef GOSSAMER_HAVE_CUDA
  if (device_.type == DeviceType::kCpu) return;
  void* const native = current_native(device_);
  std::shared_ptr<Stream>& stream = streams_[native];
  if (!stream) stream = stream_on(device_, native);
  follow(*stream);
#endif
}

}  // namespace gossamer
