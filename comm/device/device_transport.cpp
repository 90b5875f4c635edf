#include "comm/device/device_transport.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

#include <unistd.h>

#include "base/error.hpp"
#include "base/make_stream.hpp"
#include "base/text.hpp"
#include "comm/collectives/staged_communicator.hpp"
#include "comm/elastic/elastic_transport.hpp"
#include "comm/nccl/communicator.hpp"
#include "comm/nccl/library.hpp"

namespace gossamer {
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

/// Containers may have processes with the same number, but not in the same namespace; and hosts may
/// have the same namespaces.
std::string process_name() {
  std::error_code failure;
  const auto space = std::filesystem::read_symlink("/proc/self/ns/pid", failure);
  std::string host;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), host);
  return concat(host, " ", space.string(), " ", getpid());
}

Offer offer_of(const TransportChoice& choice, const Communicator& host, bool shares, bool threads) {
  Offer offer;
  offer.mpi_text = host.takes_device_memory() ? kReaches : "no MPI that reaches GPUs";
  offer.nccl_text = why_not_nccl(choice.exchange, shares, threads);
  if (!offer.nccl_text.empty()) return offer;
  // Ranks of one host must not share a GPU, so each gets a host of its own. A user's name stays.
  if (shares) setenv("NCCL_HOSTID", process_name().c_str(), /*overwrite=*/0);
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

std::string flaw_text(const std::string& flaw) {
  return concat("it has failed three times in a row, the last time with: ", flaw);
}

/// The reason that the log gives where GPUs do not exchange by NCCL.
std::string reason_of(const TransportChoice& choice, const std::vector<std::string>& nccl) {
  if (choice.exchange != "auto") return " (as asked for)";
  const std::size_t odd = first_without(nccl, nccl[0]) % nccl.size();
  return concat(" (rank ", odd, " has ", nccl[odd], ")");
}

}  // namespace

TransportChoice read_transport_choice(const Options& device) {
  return {.share = device.read(kSharesGpus), .exchange = device.read(kGpuExchange)};
}

std::string why_not_nccl(std::string_view exchange, bool shares, bool threads) {
  if (exchange == "host" || exchange == "mpi") return "no NCCL: not asked for";
  if (exchange == "nccl") return "";
  if (shares) {
    return "no NCCL: ranks share GPUs, which NCCL refuses; device.exchange: nccl gets round it, "
           "for tests";
  }
  if (threads) {
    return "no NCCL: ranks are threads of one process, which NCCL may hang; start processes "
           "(--processes N, mpirun), or ask for it with device.exchange: nccl";
  }
  return "";
}

TransportKind choose_transport(std::string_view exchange, const std::vector<std::string>& nccl,
                               const std::vector<std::string>& mpi) {
  const auto refuse = [exchange](const std::vector<std::string>& texts, std::size_t rank) {
    throw ConfigError(concat("device.exchange: ", exchange, ", but rank ", rank, " has ",
                             texts[rank], rank > 0 ? concat(", and rank 0 has ", texts[0]) : "",
                             ", allowed: auto, nccl, mpi, host"));
  };
  if (exchange == "host") return TransportKind::kHost;
  if (exchange != "mpi") {
    const std::size_t odd = nccl[0].starts_with("NCCL ") ? first_without(nccl, nccl[0]) : 0;
    if (odd == nccl.size()) return TransportKind::kNccl;
    if (exchange == "nccl") refuse(nccl, odd);
  }
  const std::size_t odd = first_without(mpi, kReaches);
  if (odd == mpi.size()) return TransportKind::kMpi;
  if (exchange == "mpi") refuse(mpi, odd);
  return TransportKind::kHost;
}

bool share_gpus(bool may_share, const std::vector<RankPlace>& places) {
  const bool first_has = !places[0].uuid.empty();
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    if (places[rank].uuid.empty() != first_has) continue;
    const std::size_t with = first_has ? 0 : rank;
    throw ConfigError(concat("rank ", with, " trains on a GPU and rank ", rank - with,
                             " on processors, allowed: GPUs for all ranks (is "
                             "CUDA_VISIBLE_DEVICES empty on one of them?), or processors"));
  }
  if (!first_has) return false;
  bool shares = false;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const auto other = std::ranges::find(places, places[rank].uuid, &RankPlace::uuid);
    const auto first = static_cast<std::size_t>(other - places.begin());
    if (first == rank) continue;
    const std::string who =
        concat("ranks ", first, " and ", rank, " have the same GPU (", places[rank].uuid, ")");
    if (!may_share) {
      throw ConfigError(
          concat("device.share: ", who,
                 "; start as many ranks per node as there are GPUs, or let ranks share them with "
                 "device.share: true (they take turns; for tests)"));
    }
    if (other->process == places[rank].process) {
      throw ConfigError(
          concat("device.share: ", who,
                 " and are threads of one process, allowed: a process for each (mpirun -n ",
                 places.size(), ", --processes ", places.size(), ")"));
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

DeviceTransport::DeviceTransport(Device device, const TransportChoice& choice, const Setup& setup)
    : host_(setup.host) {
  if (device.type == DeviceType::kCpu) {
    // Where ranks may be lost all of them are on processors, and a rank that joins meets no other
    // rank here.
    if (host_.size() > 1 && !host_.is_elastic()) {
      static_cast<void>(share_gpus(choice.share, gather_places(host_, device)));
    }
    return;
  }
  // Exchanges are short, and peers wait for them.
  std::shared_ptr<Stream> stream = make_stream(device, StreamPriority::kHigh);
  const auto make = [this, device, choice, logger = setup.logger, timeout_s = setup.timeout_s,
                     stream](Communicator& host, const std::string& flaw) {
    const TransportKind kind = meet(device, choice, logger, flaw);
    return kind == TransportKind::kNccl
               ? make_nccl_communicator(*nccl_, host, stream, {timeout_s})
               : make_staged_communicator(host, stream,
                                          {.direct_messages = kind == TransportKind::kMpi});
  };
  // Longer than an operation that never ends takes.
  const double sound_life_s = 60.0 + 2.0 * setup.timeout_s;
  own_ = make_transport(host_, stream, make, sound_life_s);
}

TransportKind DeviceTransport::meet(Device device, const TransportChoice& choice,
                                    const Logger& logger, const std::string& flaw) {
  if (host_.size() == 1) return TransportKind::kHost;
  if (!flaw.empty() && choice.exchange == "nccl") {
    throw CommError({.rank = host_.rank(), .label = {.what = "start of NCCL"}},
                    concat(flaw_text(flaw), "; device.exchange: auto would go on without NCCL"));
  }
  const std::vector<RankPlace> places = gather_places(host_, device);
  const bool shares = share_gpus(choice.share, places);
  Offer offer = offer_of(choice, host_, shares, ranks_are_threads(places));
  if (!flaw.empty()) offer.nccl_text = concat("no NCCL: ", flaw_text(flaw));
  const std::vector<std::string> nccl = host_.all_gather(offer.nccl_text);
  const TransportKind kind =
      choose_transport(choice.exchange, nccl, host_.all_gather(offer.mpi_text));
  // Operations of an earlier world may still need the library.
  if (!nccl_) nccl_ = std::move(offer.nccl);
  if (host_.rank() == 0) {
    if (shares && kind == TransportKind::kNccl) {
      logger.warning(
          "ranks share GPUs, and NCCL takes each for a host of its own, so messages go through "
          "sockets; this is for tests");
    }
    logger.info(
        kind == TransportKind::kNccl
            ? concat("GPUs exchange by ", nccl[0])
            : concat(kind == TransportKind::kMpi ? kMpiText : kHostText, reason_of(choice, nccl)));
  }
  return kind;
}

void DeviceTransport::close() {
  if (own_) own_->close();
}

}  // namespace gossamer
