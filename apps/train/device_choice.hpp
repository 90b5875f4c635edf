#pragma once
// Chooses the device on which a rank trains. Not thread safe.

#include <memory>
#include <string>

#include "apps/train/precision.hpp"
#include "base/log.hpp"
#include "base/options.hpp"
#include "base/types.hpp"
#include "comm/communicator.hpp"
#include "comm/device/device_transport.hpp"
#include "core/torch/torch_stream.hpp"

namespace gossamer::apps {

/// The `device` section of a configuration.
struct DeviceChoice {
  /// `cpu`, `cuda` or `auto`.
  std::string name = "cpu";
  TransportChoice transport = {};
  Precision precision = Precision::kFloat32;
  /// True: forward and backward passes are recorded in a CUDA graph; see GraphedStep.
  bool graph = false;
};

/// Throws ConfigError for a wrong value.
DeviceChoice read_device_choice(const Options& device);

/// The device of a rank, where `num_gpus` is the number of GPUs that the process sees. On GPUs the
/// rank takes the GPU with the number `local_rank`; if there are fewer GPUs than ranks, counting
/// starts again at 0. Throws ConfigError if a GPU is asked for and there is none.
Device device_of_rank(const DeviceChoice& choice, const Placement& placement, int num_gpus);

/// Loads what LibTorch needs for the choice: the libraries of GPUs, if a rank may train on one.
/// Call this before all other uses of LibTorch. Throws ConfigError.
void load_torch_for(const DeviceChoice& choice, int num_gpus);

/// A rank's device: the stream on which LibTorch computes there, and a communicator that reaches
/// the device's memory.
class TrainingDevice {
 public:
  struct Setup {
    Communicator& host;
    World world;
    Logger logger;
    /// The seconds of LaunchOptions::timeout_s.
    double timeout_s = 300.0;
    /// True: this rank joins others that train.
    bool joins = false;
  };
  /// Collective, except for a rank that joins. `setup.host` must outlive this object. Throws
  /// JointFailure if a rank cannot use its device, and ConfigError if the devices of all ranks do
  /// not fit together.
  TrainingDevice(const DeviceChoice& choice, const Setup& setup);

  [[nodiscard]] Device device() const { return device_; }
  [[nodiscard]] TorchStream& stream() { return *compute_; }
  /// Collective, after a training that has not failed; see Communicator::close().
  void close() { transport_.close(); }
  [[nodiscard]] Communicator& communicator() { return transport_.communicator(); }

 private:
  Device device_;
  std::unique_ptr<TorchStream> compute_;
  DeviceTransport transport_;
};

}  // namespace gossamer::apps
