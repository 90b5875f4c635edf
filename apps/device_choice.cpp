#include "gossamer/apps/device_choice.hpp"

#include <algorithm>

#include "gossamer/comm/nccl_library.hpp"
#include "gossamer/core/base/error.hpp"
#include "gossamer/core/base/make_stream.hpp"
#include "gossamer/core/base/text.hpp"
#include "gossamer/core/torch/torch_stream.hpp"

namespace gossamer::apps {
namespace {

/// What a rank has for exchanges.
struct Offer {
  std::unique_ptr<NcclApi> nccl = {};
  /// `NCCL 2.28.9`, or why there is none.
  std::string nccl_text = {};
  std::string mpi_text = {};
};

constexpr std::string_view kReaches = "MPI that reaches GPUs";

Offer offer_of(const Communicator& host, bool shares) {
  Offer offer;
  offer.mpi_text = host.reaches_gpus() ? kReaches : "no MPI that reaches GPUs";
  if (shares) {
    offer.nccl_text = "no NCCL: ranks share GPUs, which NCCL refuses";
    return offer;
  }
  try {
    offer.nccl = load_nccl();
    offer.nccl_text = concat("NCCL ", offer.nccl->version());
  } catch (const ConfigError& error) {
    offer.nccl_text = concat("no NCCL: ", error.what());
  }
  return offer;
}

/// The first rank that does not have `text`; the number of ranks: all have it.
std::size_t first_without(const std::vector<std::string>& all, std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::find_if(all, [text](const std::string& other) { return other != text; }) -
      all.begin());
}

}  // namespace

WireKind choose_wires(std::string_view exchange, const std::vector<std::string>& nccl,
                      const std::vector<std::string>& mpi) {
  const auto refuse = [exchange](const std::vector<std::string>& texts, std::size_t rank) {
    throw ConfigError(concat("device.exchange: ", exchange, ", but rank ", rank, " has ",
                             texts[rank], rank > 0 ? concat(", and rank 0 ", texts[0]) : "",
                             ", allowed: auto, host"));
  };
  if (exchange == "host") return WireKind::kHost;
  if (exchange != "mpi") {
    const std::size_t odd = nccl[0].starts_with("NCCL ") ? first_without(nccl, nccl[0]) : 0;
    if (odd == nccl.size()) return WireKind::kNccl;
    if (exchange == "nccl") refuse(nccl, odd);
  }
  const std::size_t odd = first_without(mpi, kReaches);
  if (odd == mpi.size()) return WireKind::kMpi;
  if (exchange == "mpi") refuse(mpi, odd);
  return WireKind::kHost;
}

DeviceChoice read_device_choice(const Options& device) {
  return {.name = device.choice("name", {"auto", "cpu", "cuda"}, "cpu"),
          .share = device.flag("share", false),
          .exchange = device.choice("exchange", {"auto", "nccl", "mpi", "host"}, "auto"),
          .precision = precision(device.choice("precision", precision_names(), "float32")),
          .graph = device.flag("graph", false)};
}

Device device_of_rank(const DeviceChoice& choice, const World& world, int num_gpus) {
  if (choice.name == "cpu" || (choice.name == "auto" && num_gpus == 0)) return {};
  if (num_gpus == 0) {
    throw ConfigError(
        concat("device.name: ", choice.name,
               ", but this process sees no GPU (or the program was built without CUDA), allowed: "
               "cpu, auto"));
  }
  return {DeviceType::kCuda, world.local_rank % num_gpus};
}

bool share_gpus(const DeviceChoice& choice, const std::vector<std::string>& uuids) {
  for (std::size_t rank = 0; rank < uuids.size(); ++rank) {
    if (uuids[rank].empty() != uuids[0].empty()) {
      throw ConfigError(concat("device.name: ", choice.name, ", but rank 0 ",
                               uuids[0].empty() ? "sees no GPU" : "has a GPU", " and rank ", rank,
                               uuids[0].empty() ? " has one" : " sees none",
                               ", allowed: GPUs for all ranks, or cpu"));
    }
  }
  if (uuids[0].empty()) return false;
  for (std::size_t rank = 0; rank < uuids.size(); ++rank) {
    const auto other =
        static_cast<std::size_t>(std::ranges::find(uuids, uuids[rank]) - uuids.begin());
    if (other == rank) continue;
    if (choice.share) return true;
    throw ConfigError(
        concat("device.share: ranks ", other, " and ", rank, " have the same GPU (", uuids[rank],
               "); start as many ranks per node as there are GPUs, or let ranks share them with "
               "device.share: true (they take turns, and exchange through host memory)"));
  }
  return false;
}

TrainingDevice::TrainingDevice(const DeviceChoice& choice, const Setup& setup)
    : device_(device_of_rank(choice, setup.world, num_gpus())), host_(setup.host) {
  bool shares = false;
  if (choice.name != "cpu" && setup.world.size > 1) {
    shares = share_gpus(choice, setup.host.all_gather(gpu_uuid(device_)));
  }
  compute_ = std::make_unique<TorchStream>(device_);
  if (device_.type == DeviceType::kCpu) return;
  // Exchanges are short, and peers wait for them.
  exchanges_ = make_stream(device_, StreamPriority::kHigh);
  RankDevice::Wires wires{.timeout_s = setup.timeout_s};
  if (setup.world.size > 1) {
    Offer offer = offer_of(host_, shares);
    const std::vector<std::string> nccl = host_.all_gather(offer.nccl_text);
    const WireKind kind = choose_wires(choice.exchange, nccl, host_.all_gather(offer.mpi_text));
    if (kind == WireKind::kNccl) nccl_ = std::move(offer.nccl);
    wires.nccl = nccl_.get();
    wires.direct = kind == WireKind::kMpi;
    if (setup.world.rank == 0) {
      const std::size_t odd = first_without(nccl, nccl[0]) % nccl.size();
      const std::string reason = concat(" (rank ", odd, " has ", nccl[odd], ")");
      setup.logger.info(kind == WireKind::kNccl ? concat("GPUs exchange by ", nccl[0])
                        : kind == WireKind::kMpi
                            ? concat("GPUs exchange by MPI, from their own memory", reason)
                            : concat("GPUs exchange through host memory", reason));
    }
  }
  rank_.emplace(*compute_, *exchanges_, host_, wires);
}

}  // namespace gossamer::apps
