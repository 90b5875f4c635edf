#include "apps/train/device_choice.hpp"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include <unistd.h>

#include "apps/train/agreement.hpp"
#include "base/error.hpp"
#include "base/make_stream.hpp"
#include "base/text.hpp"
#include "comm/nccl_library.hpp"
#include "core/torch/torch_stream.hpp"

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
constexpr std::string_view kMpiText = "GPUs exchange by MPI, from their own memory";
constexpr std::string_view kHostText = "GPUs exchange through host memory";

Offer offer_of(const DeviceChoice& choice, const Communicator& host, bool shares, bool threads) {
  Offer offer;
  offer.mpi_text = host.takes_device_memory() ? kReaches : "no MPI that reaches GPUs";
  if (choice.exchange == "host" || choice.exchange == "mpi") {
    offer.nccl_text = "no NCCL: not asked for";
    return offer;
  }
  if (shares) {
    offer.nccl_text = "no NCCL: ranks share GPUs, which NCCL refuses";
    return offer;
  }
  if (threads && choice.exchange == "auto") {
    offer.nccl_text =
        "no NCCL: ranks are threads of one process, which NCCL may hang; start processes "
        "(--processes N, mpirun), or ask for it with device.exchange: nccl";
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
                             texts[rank], rank > 0 ? concat(", and rank 0 has ", texts[0]) : "",
                             ", allowed: auto, nccl, mpi, host"));
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

Device device_of_rank(const DeviceChoice& choice, const Placement& placement, int num_gpus) {
  if (choice.name == "cpu" || (choice.name == "auto" && num_gpus == 0)) return {};
  if (num_gpus == 0) {
    throw ConfigError(
        concat("device.name: ", choice.name,
               ", but this process sees no GPU (or the program was built without CUDA), allowed: "
               "cpu, auto"));
  }
  return {DeviceType::kCuda, placement.local_rank % num_gpus};
}

void load_torch_for(const DeviceChoice& choice, int num_gpus) {
  if (choice.name != "cpu" && num_gpus > 0) load_torch_cuda();
}

bool share_gpus(const DeviceChoice& choice, const std::vector<RankPlace>& places) {
  const bool first_has = !places[0].uuid.empty();
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    if (places[rank].uuid.empty() != first_has) continue;
    throw ConfigError(concat("device.name: ", choice.name, ", but rank 0 ",
                             first_has ? "has a GPU" : "sees no GPU", " and rank ", rank,
                             first_has ? " sees none" : " has one",
                             ", allowed: GPUs for all ranks, or cpu"));
  }
  if (!first_has) return false;
  bool shares = false;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const auto other = std::ranges::find(places, places[rank].uuid, &RankPlace::uuid);
    const auto first = static_cast<std::size_t>(other - places.begin());
    if (first == rank) continue;
    const std::string who =
        concat("ranks ", first, " and ", rank, " have the same GPU (", places[rank].uuid, ")");
    if (!choice.share) {
      throw ConfigError(
          concat("device.share: ", who,
                 "; start as many ranks per node as there are GPUs, or let ranks share them with "
                 "device.share: true (they take turns, and NCCL is not used)"));
    }
    if (other->process == places[rank].process) {
      throw ConfigError(concat("device.share: ", who,
                               " and are threads of one process, allowed: processes (mpirun -n ",
                               places.size(), " in place of --ranks ", places.size(), ")"));
    }
    shares = true;
  }
  return shares;
}

bool ranks_are_threads(const std::vector<RankPlace>& places) {
  std::set<std::string> processes;
  for (const RankPlace& place : places) processes.insert(place.process);
  return processes.size() < places.size();
}

namespace {

/// Containers may have processes with the same number, but not in the same namespace.
std::string process_name() {
  std::error_code failure;
  const auto space = std::filesystem::read_symlink("/proc/self/ns/pid", failure);
  return concat(space.string(), " ", getpid());
}

/// Collective.
std::vector<RankPlace> gather_places(Communicator& host, Device device) {
  std::vector<RankPlace> places;
  const std::vector<std::string> uuids = host.all_gather(gpu_uuid(device));
  const std::vector<std::string> processes = host.all_gather(process_name());
  for (std::size_t rank = 0; rank < uuids.size(); ++rank) {
    places.push_back({uuids[rank], processes[rank]});
  }
  return places;
}

/// For the log, where it is not NCCL.
std::string reason_of(const DeviceChoice& choice, const std::vector<std::string>& nccl) {
  if (choice.exchange != "auto") return " (as asked for)";
  const std::size_t odd = first_without(nccl, nccl[0]) % nccl.size();
  return concat(" (rank ", odd, " has ", nccl[odd], ")");
}

}  // namespace

TrainingDevice::TrainingDevice(const DeviceChoice& choice, const Setup& setup)
    : device_(jointly(setup.host,
                      [&] { return device_of_rank(choice, setup.world.placement, num_gpus()); })),
      host_(setup.host) {
  std::vector<RankPlace> places;
  bool shares = false;
  if (choice.name != "cpu" && setup.world.size > 1) {
    places = gather_places(setup.host, device_);
    shares = share_gpus(choice, places);
  }
  compute_ = jointly(setup.host, [this] { return std::make_unique<TorchStream>(device_); });
  if (device_.type == DeviceType::kCpu) return;
  RankDevice::Wires wires{.timeout_s = setup.timeout_s};
  if (setup.world.size > 1) {
    Offer offer = offer_of(choice, host_, shares, ranks_are_threads(places));
    const std::vector<std::string> nccl = host_.all_gather(offer.nccl_text);
    const WireKind kind = choose_wires(choice.exchange, nccl, host_.all_gather(offer.mpi_text));
    if (kind == WireKind::kNccl) nccl_ = std::move(offer.nccl);
    wires.nccl = nccl_.get();
    wires.direct = kind == WireKind::kMpi;
    if (setup.world.rank == 0) {
      setup.logger.info(
          kind == WireKind::kNccl
              ? concat("GPUs exchange by ", nccl[0])
              : concat(kind == WireKind::kMpi ? kMpiText : kHostText, reason_of(choice, nccl)));
    }
  }
  // Exchanges are short, and peers wait for them.
  rank_.emplace(*compute_, make_stream(device_, StreamPriority::kHigh), host_, wires);
}

}  // namespace gossamer::apps
