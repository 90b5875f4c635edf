#include "comm/mpi_operations.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include "base/sorted.hpp"
#include "comm/mpi_check.hpp"

namespace gossamer {
namespace {

// MPI counts are ints.
constexpr std::int64_t kMaxCount = std::int64_t{1} << 30;
// Exchanges go in pieces that are all under way at once. In one piece each bucket's hand-shake
// would queue up behind the data of the bucket before it and leave the wire idle meanwhile; see
// docs/design.md for figures.
constexpr std::int64_t kPieceBytes = std::int64_t{256} * 1024;
constexpr int kExchangeTag = 1;

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

/// Owns the MPI requests of one operation.
class MpiOperation : public Operation {
 public:
  explicit MpiOperation(std::shared_ptr<const MpiGroup> group) : group_(std::move(group)) {}

  bool test() override {
    int done = 0;
    statuses_.resize(requests_.size());
    const int code =
        MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses_.data());
    if (code == MPI_ERR_IN_STATUS) throw_first_error();
    mpi_check(code, "MPI_Testall");
    return done != 0;
  }

  [[nodiscard]] std::vector<int> waiting_for() const override {
    // MPI does not tell which member of a collective is late.
    std::vector<int> others;
    for (std::size_t member = 0; member < group_->world_ranks.size(); ++member) {
      if (static_cast<int>(member) != group_->rank) others.push_back(group_->world_ranks[member]);
    }
    return others;
  }

 protected:
  MPI_Request* new_request() { return &requests_.emplace_back(MPI_REQUEST_NULL); }
  [[nodiscard]] const MpiGroup& group() const { return *group_; }
  void forget_requests() { requests_.clear(); }

 private:
  /// MPI_ERR_IN_STATUS says nothing by itself: the reason stands in one of the statuses.
  void throw_first_error() const {
    for (const MPI_Status& status : statuses_) {
      if (status.MPI_ERROR != MPI_ERR_PENDING) mpi_check(status.MPI_ERROR, "MPI_Testall");
    }
  }

  std::shared_ptr<const MpiGroup> group_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
};

/// One message to each of `peers`, one from each of `incoming`.
class MpiExchange : public MpiOperation {
 public:
  MpiExchange(std::shared_ptr<const MpiGroup> group, ConstBlock send, std::vector<int> peers,
              std::vector<Incoming> incoming)
      : MpiOperation(std::move(group)),
        send_(send),
        peers_(std::move(peers)),
        incoming_(std::move(incoming)) {}

  void start() override {
    const MPI_Datatype type = mpi_type(send_.dtype);
    const std::int64_t piece = kPieceBytes / size_of(send_.dtype);
    for_each_piece(send_.numel, piece, [&](std::int64_t first, int count) {
      for (const Incoming& from : incoming_) {
        mpi_check(MPI_Irecv(at(from.block, first), count, type, from.peer, kExchangeTag,
                            group().comm, new_request()),
                  "MPI_Irecv");
      }
      for (const int peer : peers_) {
        mpi_check(MPI_Isend(at(send_, first), count, type, peer, kExchangeTag, group().comm,
                            new_request()),
                  "MPI_Isend");
      }
    });
  }

  [[nodiscard]] std::vector<int> waiting_for() const override {
    std::vector<int> ranks = peers_;
    for (const Incoming& from : incoming_) ranks.push_back(from.peer);
    for (int& rank : ranks) rank = group().world_ranks[static_cast<std::size_t>(rank)];
    sort_unique(ranks);
    return ranks;
  }

 private:
  ConstBlock send_;
  std::vector<int> peers_;
  std::vector<Incoming> incoming_;
};

class MpiAllReduce : public MpiOperation {
 public:
  MpiAllReduce(std::shared_ptr<const MpiGroup> group, ConstBlock send, Block receive)
      : MpiOperation(std::move(group)), send_(send), receive_(receive) {}

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

class MpiBroadcast : public MpiOperation {
 public:
  MpiBroadcast(std::shared_ptr<const MpiGroup> group, Block block, int root)
      : MpiOperation(std::move(group)), block_(block), root_(root) {}

  void start() override {
    const MPI_Datatype type = mpi_type(block_.dtype);
    for_each_piece(block_.numel, kMaxCount, [&](std::int64_t first, int count) {
      mpi_check(MPI_Ibcast(at(block_, first), count, type, root_, group().comm, new_request()),
                "MPI_Ibcast");
    });
  }

 private:
  Block block_;
  int root_;
};

class MpiBarrier : public MpiOperation {
 public:
  using MpiOperation::MpiOperation;
  void start() override { mpi_check(MPI_Ibarrier(group().comm, new_request()), "MPI_Ibarrier"); }
};

/// Two steps: all lengths, then all texts.
class MpiGather : public MpiOperation {
 public:
  MpiGather(std::shared_ptr<const MpiGroup> group, std::string text,
            std::shared_ptr<std::vector<std::string>> texts)
      : MpiOperation(std::move(group)),
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
    if (!MpiOperation::test()) return false;
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

class MpiCall : public Operation {
 public:
  explicit MpiCall(std::function<void()> call) : call_(std::move(call)) {}
  void start() override { call_(); }
  bool test() override { return true; }
  [[nodiscard]] std::vector<int> waiting_for() const override { return {}; }

 private:
  std::function<void()> call_;
};

}  // namespace

std::unique_ptr<Operation> make_mpi_exchange(std::shared_ptr<const MpiGroup> group, ConstBlock send,
                                             std::vector<int> peers,
                                             std::vector<Incoming> incoming) {
  return std::make_unique<MpiExchange>(std::move(group), send, std::move(peers),
                                       std::move(incoming));
}

std::unique_ptr<Operation> make_mpi_all_reduce(std::shared_ptr<const MpiGroup> group,
                                               ConstBlock send, Block receive) {
  return std::make_unique<MpiAllReduce>(std::move(group), send, receive);
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

std::unique_ptr<Operation> make_mpi_call(std::function<void()> call) {
  return std::make_unique<MpiCall>(std::move(call));
}

}  // namespace gossamer
