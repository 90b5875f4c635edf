#include "core/torch/torch_stream.hpp"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <torch/types.h>

#include "base/error.hpp"
#include "base/make_stream.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

/// Memory of LibTorch's caching allocator, which counts it as its own.
Buffer allocate_with_torch(std::int64_t numel, DType dtype, Device device) {
  const Block block{nullptr, numel, dtype, device};
  const torch::Tensor tensor = torch::empty(
      {block.bytes()}, torch::TensorOptions(torch_device(device)).dtype(torch::kUInt8));
  const auto owner = std::make_shared<torch::Tensor>(tensor);
  return {owner, {tensor.data_ptr(), numel, dtype, device}};
}

/// The stream on which LibTorch computes in this thread; null on processors.
void* current_native(Device device) {
  if (device.type == DeviceType::kCpu) return nullptr;
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  return guard.getStream(torch_device(device)).native_handle();
}

void* first_native(Device device) {
  use_torch_device(device);
  return current_native(device);
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
  load_torch_cuda();
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  guard.setDevice(torch_device(device));
}

TorchStream::TorchStream(Device device)
    : FrameworkStream(device, first_native(device), [device](std::int64_t numel, DType dtype) {
        return allocate_with_torch(numel, dtype, device);
      }) {}

void TorchStream::keep_for_current(const at::Tensor& tensor) {
  if (device().type == DeviceType::kCpu) return;
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  tensor.record_stream(guard.getStream(torch_device(device())));
}

void TorchStream::update_current() { set_current(current_native(device())); }

}  // namespace gossamer
