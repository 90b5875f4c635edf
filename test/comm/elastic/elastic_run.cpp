#include "test/comm/elastic_run.hpp"

#include <mutex>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "comm/backends.hpp"

namespace gossamer::elastic_test {
namespace {

/// What the ranks of a run must agree on. Thread safe.
class Chronicle {
 public:
  void begin(const Membership& membership) {
    const std::lock_guard lock(mutex_);
    const auto begun = std::pair(membership.members, membership.step);
    EXPECT_EQ(epochs_.try_emplace(membership.epoch, begun).first->second, begun)
        << "epoch " << membership.epoch;
  }
  void make(std::int64_t member, std::int64_t step) {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(made_.emplace(member, step).second) << member << " makes step " << step << " twice";
  }

 private:
  std::mutex mutex_;
  std::map<std::int64_t, std::pair<std::vector<std::int64_t>, std::int64_t>> epochs_;
  std::set<std::pair<std::int64_t, std::int64_t>> made_;
};

std::int64_t own_id(const Membership& membership) {
  return membership.members[static_cast<std::size_t>(membership.world.rank)];
}

class Rank {
 public:
  /// `first_rank`: negative for one that joins.
  Rank(const Plan& plan, Chronicle& chronicle, int first_rank)
      : plan_(plan), chronicle_(chronicle), first_rank_(first_rank) {}

  Ended live(const OpenSession& open) {
    try {
      const std::unique_ptr<Session> session = open();
      train(*session);
    } catch (const std::exception& error) {
      ended_.code = static_cast<int>(exit_code_of(error));
      ended_.why = error.what();
    }
    return std::move(ended_);
  }

 private:
  void train(Session& session) {
    Communicator& communicator = session.communicator();
    ASSERT_TRUE(communicator.is_elastic());
    // One may have died before all had met, and others have made a step since.
    communicator.elastic()->admit(true);
    begin(session, communicator.elastic()->membership());
    while (ended_.steps < kSteps ||
           (plan_.num_joins > 0 && communicator.size() != plan_.last_size())) {
      ASSERT_LT(ended_.steps, 1'000'000) << "nobody has come";
      if (plan_.num_joins > 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
      const auto death = plan_.dies.find(first_rank_);
      if (death != plan_.dies.end() && death->second <= ended_.steps) return;
      try {
        if (plan_.at_step) plan_.at_step(ended_.steps);
        make_step(communicator, ended_.steps);
        chronicle_.make(id_, ended_.steps++);
        continue;
      } catch (const PeerLost&) {
      }
      if (std::ranges::find(plan_.dies_later, first_rank_) != plan_.dies_later.end()) return;
      // The step under way counts as made.
      chronicle_.make(id_, ended_.steps);
      begin(session, communicator.elastic()->reconfigure(++ended_.steps));
    }
    session.close();
    ended_.code = 0;
  }

  void begin(const Session& session, const Membership& membership) {
    chronicle_.begin(membership);
    EXPECT_GT(membership.epoch, epoch_);
    EXPECT_GE(membership.step, ended_.steps);
    id_ = own_id(membership);
    if (first_rank_ >= 0) {
      EXPECT_EQ(id_, first_rank_);
    } else {
      EXPECT_GE(id_, plan_.size);
    }
    EXPECT_EQ(session.world().size, membership.world.size);
    EXPECT_EQ(session.world().rank, membership.world.rank);
    epoch_ = membership.epoch;
    ended_.steps = membership.step;
    ended_.sizes.push_back(membership.world.size);
  }

  const Plan& plan_;
  Chronicle& chronicle_;
  int first_rank_;
  std::int64_t id_ = -1;
  std::int64_t epoch_ = -1;
  Ended ended_;
};

LaunchOptions options_of(const Plan& plan) {
  LaunchOptions options{.timeout_s = plan.timeout_s, .log_level = LogLevel::kOff};
  options.fault = {.survives = true,
                   .min_ranks = plan.min_ranks,
                   .silence_s = 20.0,
                   .wrap = inject_faults(plan.injector)};
  options.meeting.secret = plan.secret;
  return options;
}

Ended join_run(const Plan& plan, Chronicle& chronicle) {
  LaunchOptions options = options_of(plan);
  options.fault.joins = true;
  options.meeting.store = plan.store;
  options.meeting.size = plan.size;
  return Rank(plan, chronicle, -1).live([&] {
    return std::move(open_sessions(plan.backend, options).front());
  });
}

}  // namespace

void make_step(Communicator& communicator, std::int64_t step) {
  const int size = communicator.size();
  const int rank = communicator.rank();
  std::vector<std::int64_t> one{1};
  std::vector<std::int64_t> sum{0};
  communicator
      .all_reduce_sum(block_of(std::span(one)), block_of(std::span(sum)),
                      {.label = {.what = "sum", .round = step}})
      .wait();
  EXPECT_EQ(sum[0], size);
  const int peer = rank % 2 == 0 ? rank + 1 : rank - 1;
  if (peer >= size) return;
  std::vector<std::int64_t> mine(5'000, rank);
  std::vector<std::int64_t> theirs(5'000, -1);
  communicator
      .exchange(peer, block_of(std::span(mine)), block_of(std::span(theirs)),
                {.label = {.what = "exchange", .round = step}})
      .wait();
  EXPECT_EQ(std::ranges::count(theirs, peer), 5'000);
}

Ended join(const Plan& plan) {
  Chronicle chronicle;
  return join_run(plan, chronicle);
}

std::vector<Ended> play(Plan plan) {
  std::vector<Ended> ends(static_cast<std::size_t>(plan.size + plan.num_joins));
  Chronicle chronicle;
  std::vector<std::jthread> joiners;
  std::once_flag once;
  const auto let_join = [&] {
    for (int i = 0; i < plan.num_joins; ++i) {
      joiners.emplace_back(
          [&, i] { ends[static_cast<std::size_t>(plan.size + i)] = join_run(plan, chronicle); });
    }
  };
  plan.at_step = [&, before = plan.at_step](std::int64_t step) {
    if (before) before(step);
    if (step >= 5) std::call_once(once, let_join);
  };
  on_ranks(plan.backend, plan.size, plan.store, options_of(plan),
           [&](int rank, const OpenSession& open) {
             ends[static_cast<std::size_t>(rank)] = Rank(plan, chronicle, rank).live(open);
           });
  joiners.clear();
  return ends;
}

void expect_survival(const Plan& plan, const std::vector<Ended>& ends) {
  std::int64_t steps = 0;
  for (int rank = 0; rank < plan.size + plan.num_joins; ++rank) {
    const Ended& ended = ends[static_cast<std::size_t>(rank)];
    if (!plan.lives(rank)) {
      EXPECT_EQ(ended.code, -1) << rank << ": " << ended.why;
      continue;
    }
    ASSERT_EQ(ended.code, 0) << rank << ": " << ended.why;
    if (steps == 0) steps = ended.steps;
    EXPECT_GE(ended.steps, kSteps) << rank;
    EXPECT_EQ(ended.steps, steps) << rank;
    EXPECT_EQ(ended.sizes.back(), plan.last_size());
  }
}

}  // namespace gossamer::elastic_test
