#include "comm/mpi/operations.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include "base/sorted.hpp"
#include "comm/mpi/check.hpp"

namespace gossamer {
namespace {

// MPI counts are ints.
constexpr std::int64_t kMaxCount = std::int64_t{1} << 30;
// The most bytes of a message whose end shows progress.
constexpr std::int64_t kTestedBytes = std::int64_t{32} << 20;
constexpr int kExchangeTag = 1;
// Behind the tags of sums round a ring (ring_sum.cpp).
constexpr int kFirstTag = 8192;

/// Calls fn(first, count) for consecutive pieces of at most `largest` elements; once for an empty
/// block.
template <class Fn>
void for_each_piece(std::int64_t numel, std::int64_t largest, const Fn& fn) {
  std::int64_t first = 0;
  do {
    const std::int64_t count = std::min(largest, numel - first);
    fn(first, static_cast<int>(count));
    first += count;
  } while (first < numel);
}

std::byte* at(const Block& block, std::int64_t first) {
  return static_cast<std::byte*>(block.data) + first * size_of(block.dtype);
}
const std::byte* at(const ConstBlock& block, std::int64_t first) {
  return static_cast<const std::byte*>(block.data) + first * size_of(block.dtype);
}

/// The most elements of a piece.
std::int64_t piece_numel(DType dtype) { return kTestedBytes / size_of(dtype); }

/// MPI requests that are tested together.
class MpiRequests {
 public:
  /// `bytes`: what the request moves; 0: MPI does not tell.
  MPI_Request* add(std::int64_t bytes = 0) {
    bytes_.push_back(bytes);
    progress_.total += bytes;
    return &requests_.emplace_back(MPI_REQUEST_NULL);
  }
  void clear() {
    requests_.clear();
    bytes_.clear();
  }

  /// Whether all are over. Never blocks. Throws CommError.
  bool test() {
    int num_over = 0;
    statuses_.resize(requests_.size());
    indices_.resize(requests_.size());
    const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &num_over,
                                  indices_.data(), statuses_.data());
    // MPI_UNDEFINED: none is under way any more.
    const std::size_t count = num_over == MPI_UNDEFINED ? 0 : static_cast<std::size_t>(num_over);
    if (code == MPI_ERR_IN_STATUS) throw_first_error(count);
    mpi_check(code, "MPI_Testsome");
    for (std::size_t i = 0; i < count; ++i) {
      progress_.moved += bytes_[static_cast<std::size_t>(indices_[i])];
    }
    progress_.num_events += static_cast<std::int64_t>(count);
    return std::ranges::all_of(requests_,
                               [](MPI_Request request) { return request == MPI_REQUEST_NULL; });
  }

  /// The progress in whole requests.
  [[nodiscard]] const Progress& progress() const { return progress_; }

 private:
  /// MPI_ERR_IN_STATUS says nothing by itself: the reason stands in one of the statuses.
  void throw_first_error(std::size_t count) const {
    for (std::size_t i = 0; i < count; ++i) mpi_check(statuses_[i].MPI_ERROR, "MPI_Testsome");
  }

  std::vector<MPI_Request> requests_;
  std::vector<std::int64_t> bytes_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  Progress progress_;
};

/// A collective operation: all members of a group call the same function of MPI.
class MpiCollective : public Operation {
 public:
  explicit MpiCollective(std::shared_ptr<const MpiGroup> group) : group_(std::move(group)) {}

  bool test() override { return requests_.test(); }
  [[nodiscard]] Progress progress() const override { return requests_.progress(); }

  [[nodiscard]] std::vector<int> waiting_for() const override {
    // MPI does not tell which member of a collective is late.
    return other_members(*group_);
  }

 protected:
  MPI_Request* new_request(std::int64_t bytes = 0) { return requests_.add(bytes); }
  [[nodiscard]] const MpiGroup& group() const { return *group_; }
  void forget_requests() { requests_.clear(); }

 private:
  std::shared_ptr<const MpiGroup> group_;
  MpiRequests requests_;
};

/// One message to each of `peers`, one from each of `incoming`.
///
/// MPI announces a large message, and sends it when the receiver has allowed that. On one TCP
/// connection, an allowance queues up behind the data that go the same way. Two rules keep the wire
/// busy in both directions:
///
/// - All sends come before the first receive. So a rank's announcement always precedes its
///   allowance, and both sides have allowed the other's message before either side's data flow.
/// - The next exchange starts when the data of this one have left. So its announcement does not
///   wait behind them, and two exchanges do not share the link.
///
/// docs/design/decisions/exchanges.md has the figures.
class MpiExchange : public Operation {
 public:
  MpiExchange(std::shared_ptr<const MpiGroup> group, ConstBlock send, std::vector<int> peers,
              std::vector<Incoming> incoming, int tag)
      : group_(std::move(group)),
        send_(send),
        peers_(std::move(peers)),
        incoming_(std::move(incoming)),
        tag_(tag) {}

  void start() override {
    const MPI_Datatype type = mpi_type(send_.dtype);
    const std::int64_t most = piece_numel(send_.dtype);
    for (const int peer : peers_) {
      for_each_piece(send_.numel, most, [&](std::int64_t first, int count) {
        mpi_check(MPI_Isend(at(send_, first), count, type, peer, tag_, group_->comm,
                            sends_.add(count * size_of(send_.dtype))),
                  "MPI_Isend");
      });
    }
    for (const Incoming& from : incoming_) {
      for_each_piece(send_.numel, most, [&](std::int64_t first, int count) {
        mpi_check(MPI_Irecv(at(from.block, first), count, type, from.peer, tag_, group_->comm,
                            receives_.add(count * size_of(send_.dtype))),
                  "MPI_Irecv");
      });
    }
  }

  bool test() override {
    has_sent_ = has_sent_ || sends_.test();
    has_received_ = has_received_ || receives_.test();
    return has_sent_ && has_received_;
  }

  [[nodiscard]] Progress progress() const override {
    Progress progress = sends_.progress();
    progress += receives_.progress();
    return progress;
  }
  [[nodiscard]] bool lets_next_start() const override { return has_sent_; }
  [[nodiscard]] bool is_tagged() const override { return tag_ >= kFirstTag; }

  [[nodiscard]] std::vector<int> waiting_for() const override {
    std::vector<int> ranks;
    if (!has_sent_) ranks = peers_;
    if (!has_received_) {
      for (const Incoming& from : incoming_) ranks.push_back(from.peer);
    }
    for (int& rank : ranks) rank = group_->world_ranks[static_cast<std::size_t>(rank)];
    sort_unique(ranks);
    return ranks;
  }

 private:
  std::shared_ptr<const MpiGroup> group_;
  ConstBlock send_;
  std::vector<int> peers_;
  std::vector<Incoming> incoming_;
  int tag_;
  MpiRequests sends_;
  MpiRequests receives_;
  bool has_sent_ = false;
  bool has_received_ = false;
};

class MpiAllReduce : public MpiCollective {
 public:
  MpiAllReduce(std::shared_ptr<const MpiGroup> group, ConstBlock send, Block receive)
      : MpiCollective(std::move(group)), send_(send), receive_(receive) {}

  void start() override {
    const MPI_Datatype type = mpi_type(send_.dtype);
    for_each_piece(send_.numel, kMaxCount, [&](std::int64_t first, int count) {
      mpi_check(MPI_Iallreduce(at(send_, first), at(receive_, first), count, type, MPI_SUM,
                               group().comm, new_request()),
                "MPI_Iallreduce");
    });
  }

 private:
  ConstBlock send_;
  Block receive_;
};

class MpiReduce : public MpiCollective {
 public:
  MpiReduce(std::shared_ptr<const MpiGroup> group, Block block, int root)
      : MpiCollective(std::move(group)), block_(block), root_(root) {}

  void start() override {
    const MPI_Datatype type = mpi_type(block_.dtype);
    const bool is_root = group().rank == root_;
    for_each_piece(block_.numel, kMaxCount, [&](std::int64_t first, int count) {
      mpi_check(MPI_Ireduce(is_root ? MPI_IN_PLACE : at(block_, first), at(block_, first), count,
                            type, MPI_SUM, root_, group().comm, new_request()),
                "MPI_Ireduce");
    });
  }

 private:
  Block block_;
  int root_;
};

class MpiBroadcast : public MpiCollective {
 public:
  MpiBroadcast(std::shared_ptr<const MpiGroup> group, Block block, int root)
      : MpiCollective(std::move(group)), block_(block), root_(root) {}

  void start() override {
    const MPI_Datatype type = mpi_type(block_.dtype);
    for_each_piece(block_.numel, piece_numel(block_.dtype), [&](std::int64_t first, int count) {
      mpi_check(MPI_Ibcast(at(block_, first), count, type, root_, group().comm,
                           new_request(count * size_of(block_.dtype))),
                "MPI_Ibcast");
    });
  }

 private:
  Block block_;
  int root_;
};

class MpiBarrier : public MpiCollective {
 public:
  using MpiCollective::MpiCollective;
  void start() override { mpi_check(MPI_Ibarrier(group().comm, new_request()), "MPI_Ibarrier"); }
};

/// Two steps: all lengths, then all texts.
class MpiGather : public MpiCollective {
 public:
  MpiGather(std::shared_ptr<const MpiGroup> group, std::string text,
            std::shared_ptr<std::vector<std::string>> texts)
      : MpiCollective(std::move(group)),
        text_(std::move(text)),
        lengths_(this->group().world_ranks.size()),
        texts_(std::move(texts)) {}

  void start() override {
    my_length_ = static_cast<std::int64_t>(text_.size());
    mpi_check(MPI_Iallgather(&my_length_, 1, MPI_INT64_T, lengths_.data(), 1, MPI_INT64_T,
                             group().comm, new_request()),
              "MPI_Iallgather");
  }

  bool test() override {
    if (!MpiCollective::test()) return false;
    if (!have_lengths_) {
      have_lengths_ = true;
      start_texts();
      return false;
    }
    for (std::size_t m = 0; m < counts_.size(); ++m) {
      texts_->push_back(
          all_.substr(static_cast<std::size_t>(offsets_[m]), static_cast<std::size_t>(counts_[m])));
    }
    return true;
  }

 private:
  void start_texts() {
    forget_requests();
    std::int64_t total = 0;
    for (const std::int64_t length : lengths_) {
      offsets_.push_back(static_cast<int>(total));
      counts_.push_back(static_cast<int>(length));
      total += length;
      if (total > std::numeric_limits<int>::max()) {
        throw std::logic_error("all_gather: the texts together are larger than 2 GiB");
      }
    }
    all_.resize(static_cast<std::size_t>(total));
    mpi_check(
        MPI_Iallgatherv(text_.data(), static_cast<int>(text_.size()), MPI_CHAR, all_.data(),
                        counts_.data(), offsets_.data(), MPI_CHAR, group().comm, new_request()),
        "MPI_Iallgatherv");
  }

  std::string text_;
  std::int64_t my_length_ = 0;
  std::vector<std::int64_t> lengths_;
  std::vector<int> counts_;
  std::vector<int> offsets_;
  std::string all_;
  bool have_lengths_ = false;
  std::shared_ptr<std::vector<std::string>> texts_;
};

}  // namespace

std::vector<int> other_members(const MpiGroup& group) {
  std::vector<int> others;
  for (std::size_t member = 0; member < group.world_ranks.size(); ++member) {
    if (static_cast<int>(member) != group.rank) others.push_back(group.world_ranks[member]);
  }
  return others;
}

std::unique_ptr<Operation> make_mpi_exchange(std::shared_ptr<const MpiGroup> group, ConstBlock send,
                                             std::vector<int> peers,
                                             std::vector<Incoming> incoming) {
  return std::make_unique<MpiExchange>(std::move(group), send, std::move(peers),
                                       std::move(incoming), kExchangeTag);
}

std::unique_ptr<Operation> make_mpi_send(std::shared_ptr<const MpiGroup> group, int peer, int tag,
                                         ConstBlock message) {
  return std::make_unique<MpiExchange>(std::move(group), message, std::vector{peer},
                                       std::vector<Incoming>(), kFirstTag + tag);
}

std::unique_ptr<Operation> make_mpi_receive(std::shared_ptr<const MpiGroup> group, int peer,
                                            int tag, Block message) {
  return std::make_unique<MpiExchange>(std::move(group), message, std::vector<int>(),
                                       std::vector{Incoming{peer, message}}, kFirstTag + tag);
}

std::unique_ptr<Operation> make_mpi_all_reduce(std::shared_ptr<const MpiGroup> group,
                                               ConstBlock send, Block receive) {
  return std::make_unique<MpiAllReduce>(std::move(group), send, receive);
}

std::unique_ptr<Operation> make_mpi_reduce(std::shared_ptr<const MpiGroup> group, Block block,
                                           int root) {
  return std::make_unique<MpiReduce>(std::move(group), block, root);
}

std::unique_ptr<Operation> make_mpi_broadcast(std::shared_ptr<const MpiGroup> group, Block block,
                                              int root) {
  return std::make_unique<MpiBroadcast>(std::move(group), block, root);
}

std::unique_ptr<Operation> make_mpi_barrier(std::shared_ptr<const MpiGroup> group) {
  return std::make_unique<MpiBarrier>(std::move(group));
}

std::unique_ptr<Operation> make_mpi_gather(std::shared_ptr<const MpiGroup> group, std::string text,
                                           std::shared_ptr<std::vector<std::string>> texts) {
  return std::make_unique<MpiGather>(std::move(group), std::move(text), std::move(texts));
}

}  // namespace gossamer
