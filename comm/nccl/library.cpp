#include "comm/nccl/library.hpp"

#include <cstring>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <nccl.h>

#include "base/cuda_check.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

constexpr int kLeastVersion = NCCL_VERSION(2, 18, 0);

std::string version_text(int version) {
  return concat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

/// A function of the library that is loaded.
template <class Function>
Function* find(void* library, const char* name) {
  void* const function = dlsym(library, name);
  if (function == nullptr) {
    throw ConfigError(concat("libnccl.so.2 has no ", name, ", allowed: NCCL 2.18 or newer"));
  }
  return reinterpret_cast<Function*>(function);
}

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ncclFloat32;
    case DType::kFloat64:
      return ncclFloat64;
    case DType::kBFloat16:
      return ncclBfloat16;
    case DType::kInt64:
      return ncclInt64;
    case DType::kUInt8:
      return ncclUint8;
  }
  return ncclUint8;
}

class NcclLibrary : public NcclApi {
 public:
  explicit NcclLibrary(void* library)
      : get_version_(find<decltype(ncclGetVersion)>(library, "ncclGetVersion")),
        get_unique_id_(find<decltype(ncclGetUniqueId)>(library, "ncclGetUniqueId")),
        init_(find<decltype(ncclCommInitRankConfig)>(library, "ncclCommInitRankConfig")),
        split_(find<decltype(ncclCommSplit)>(library, "ncclCommSplit")),
        async_error_(find<decltype(ncclCommGetAsyncError)>(library, "ncclCommGetAsyncError")),
        error_string_(find<decltype(ncclGetErrorString)>(library, "ncclGetErrorString")),
        last_error_(find<decltype(ncclGetLastError)>(library, "ncclGetLastError")),
        group_start_(find<decltype(ncclGroupStart)>(library, "ncclGroupStart")),
        group_end_(find<decltype(ncclGroupEnd)>(library, "ncclGroupEnd")),
        send_(find<decltype(ncclSend)>(library, "ncclSend")),
        receive_(find<decltype(ncclRecv)>(library, "ncclRecv")),
        all_reduce_(find<decltype(ncclAllReduce)>(library, "ncclAllReduce")),
        broadcast_(find<decltype(ncclBroadcast)>(library, "ncclBroadcast")),
        finalize_(find<decltype(ncclCommFinalize)>(library, "ncclCommFinalize")),
        destroy_(find<decltype(ncclCommDestroy)>(library, "ncclCommDestroy")),
        abort_(find<decltype(ncclCommAbort)>(library, "ncclCommAbort")) {
    if (get_version_(&version_) != ncclSuccess || version_ < kLeastVersion) {
      throw ConfigError(
          concat("libnccl.so.2 is NCCL ", version_text(version_), ", allowed: 2.18 or newer"));
    }
  }

  [[nodiscard]] std::string version() const override { return version_text(version_); }

  std::string unique_id() override {
    ncclUniqueId id;
    check(get_unique_id_(&id), "ncclGetUniqueId");
    return {id.internal, sizeof(id.internal)};
  }

  Comm init(const std::string& id, int rank, int size) override {
    ncclUniqueId unique;
    if (id.size() != sizeof(unique.internal)) {
      throw CommError({}, "the ranks have NCCL libraries of different kinds");
    }
    std::memcpy(unique.internal, id.data(), sizeof(unique.internal));
    ncclConfig_t config = nonblocking();
    ncclComm_t comm = nullptr;
    check(init_(&comm, size, unique, rank, &config), "ncclCommInitRankConfig");
    return comm;
  }

  void split(Comm comm, int color, int key, Comm* part) override {
    ncclConfig_t config = nonblocking();
    // NCCL fills the handle in when its parent has come to rest (as of 2.23; NVIDIA/nccl 1472).
    check(split_(native(comm), color < 0 ? NCCL_SPLIT_NOCOLOR : color, key,
                 reinterpret_cast<ncclComm_t*>(part), &config),
          "ncclCommSplit");
  }

  bool progress(Comm comm) override {
    ncclResult_t state = ncclSuccess;
    check(async_error_(native(comm), &state), "ncclCommGetAsyncError");
    if (state == ncclInProgress) return false;
    if (state != ncclSuccess) {
      throw CommError({}, concat("NCCL: ", error_string_(state), ": ", last_error_(native(comm))));
    }
    return true;
  }

  void group_start() override { check(group_start_(), "ncclGroupStart"); }
  void group_end() override { check(group_end_(), "ncclGroupEnd"); }

  void send(Comm comm, const ConstBlock& block, int peer, Stream& stream) override {
    check(
        send_(block.data, count(block), nccl_type(block.dtype), peer, native(comm), native(stream)),
        "ncclSend");
  }
  void receive(Comm comm, const Block& block, int peer, Stream& stream) override {
    check(receive_(block.data, count(block), nccl_type(block.dtype), peer, native(comm),
                   native(stream)),
          "ncclRecv");
  }
  void all_reduce_sum(Comm comm, const ConstBlock& send, const Block& receive,
                      Stream& stream) override {
    check(all_reduce_(send.data, receive.data, count(send), nccl_type(send.dtype), ncclSum,
                      native(comm), native(stream)),
          "ncclAllReduce");
  }
  void broadcast(Comm comm, const Block& block, int root, Stream& stream) override {
    check(broadcast_(block.data, block.data, count(block), nccl_type(block.dtype), root,
                     native(comm), native(stream)),
          "ncclBroadcast");
  }

  void finalize(Comm comm) override { check(finalize_(native(comm)), "ncclCommFinalize"); }
  void destroy(Comm comm) override { check(destroy_(native(comm)), "ncclCommDestroy"); }

  /// All at once: an abort may wait for the device, where an operation of another communicator
  /// stands before what it ends.
  void abort(std::span<const Comm> comms) noexcept override {
    std::size_t num_begun = 0;
    try {
      std::vector<std::jthread> threads;
      for (; num_begun < comms.size(); ++num_begun) {
        threads.emplace_back([this, comm = comms[num_begun]] { abort_(native(comm)); });
      }
    } catch (const std::system_error&) {
      for (const Comm comm : comms.subspan(num_begun)) abort_(native(comm));
    }
  }

 private:
  static ncclConfig_t nonblocking() {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return config;
  }
  static ncclComm_t native(Comm comm) { return static_cast<ncclComm_t>(comm); }
  static cudaStream_t native(const Stream& stream) {
    return static_cast<cudaStream_t>(stream.native());
  }
  static std::size_t count(const ConstBlock& block) {
    return static_cast<std::size_t>(block.numel);
  }

  /// A call that has not had its effect yet has not failed.
  void check(ncclResult_t code, const char* call) const {
    if (code == ncclSuccess || code == ncclInProgress) return;
    throw CommError({}, concat(call, ": ", error_string_(code), ": ", last_error_(nullptr)));
  }

  decltype(ncclGetVersion)* get_version_;
  decltype(ncclGetUniqueId)* get_unique_id_;
  decltype(ncclCommInitRankConfig)* init_;
  decltype(ncclCommSplit)* split_;
  decltype(ncclCommGetAsyncError)* async_error_;
  decltype(ncclGetErrorString)* error_string_;
  decltype(ncclGetLastError)* last_error_;
  decltype(ncclGroupStart)* group_start_;
  decltype(ncclGroupEnd)* group_end_;
  decltype(ncclSend)* send_;
  decltype(ncclRecv)* receive_;
  decltype(ncclAllReduce)* all_reduce_;
  decltype(ncclBroadcast)* broadcast_;
  decltype(ncclCommFinalize)* finalize_;
  decltype(ncclCommDestroy)* destroy_;
  decltype(ncclCommAbort)* abort_;
  int version_ = 0;
};

}  // namespace

std::unique_ptr<NcclApi> load_nccl() {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = dlerror();
    throw ConfigError(
        concat("NCCL cannot be loaded: ", reason == nullptr ? "no reason given" : reason,
               "; scripts/setup.sh --gpu installs it, and device.exchange: host does "
               "without"));
  }
  return std::make_unique<NcclLibrary>(library);
}

}  // namespace gossamer
