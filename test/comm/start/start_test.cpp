// How a run starts without MPI: what options, variables and configurations mean together.

#include "comm/start/start.hpp"

#include "test/apps/folder.hpp"
#include "test/base/thrown.hpp"

#include <map>
#include <memory>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "apps/train/run_config.hpp"
#include "apps/train/start_store.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/start/secret.hpp"
#include "comm/start/store_use.hpp"
#include "core/torch/c10d_store.hpp"

namespace gossamer::start_test {
namespace {

using namespace std::chrono_literals;
using apps::open_store;
using apps::read_comm_config;

using Map = std::map<std::string, std::string>;

const std::string kSecret = "0123456789abcdef";
const Map kWithSecret = {{"GOSSAMER_SECRET", kSecret}};
const Map kTorchrun = {{"RANK", "5"},
                       {"WORLD_SIZE", "8"},
                       {"LOCAL_WORLD_SIZE", "2"},
                       {"MASTER_ADDR", "n1"},
                       {"MASTER_PORT", "29400"},
                       {"TORCHELASTIC_RUN_ID", "job"},
                       {"TORCHELASTIC_RESTART_COUNT", "2"},
                       {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                       {"GOSSAMER_SECRET", kSecret}};
const Map kSlurm = {{"SLURM_JOB_ID", "1234"},      {"SLURM_STEP_ID", "3"},
                    {"SLURM_PROCID", "2"},         {"SLURM_STEP_NUM_TASKS", "4"},
                    {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_NODELIST", "n[01-02]"},
                    {"GOSSAMER_SECRET", kSecret}};

Map with(Map map, const Map& more) {
  for (const auto& [name, value] : more) map[name] = value;
  return map;
}

LaunchConfig config_of(const std::string& yaml) {
  LaunchConfig config = read_comm_config(Options::parse(yaml)).launch;
  // The tests' own environment does not count.
  if (config.is_auto) config.backend = "threads";
  return config;
}

/// A configuration that asks for the backend `tcp`, which this program may lack.
LaunchConfig tcp() {
  LaunchConfig config = config_of("");
  config.backend = "tcp";
  config.is_auto = false;
  return config;
}

Start plan(const StartOptions& options, const Map& variables,
           const LaunchConfig& config = config_of(""), bool under_mpi = false) {
  const Environment environment = [&variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  return plan_start(options, config, environment, under_mpi);
}

/// The message of the ConfigError.
std::string refusal(const StartOptions& options, const Map& variables,
                    const LaunchConfig& config = config_of(""), bool under_mpi = false) {
  const std::string what =
      what_of<ConfigError>([&] { plan(options, variables, config, under_mpi); });
  EXPECT_NE(what, "") << "no error";
  return what;
}

TEST(Start, IsByThreadsOrMpiWhereNothingElseIsSaid) {
  for (const Map& variables : {Map{}, kWithSecret, kSlurm, Map{{"RANK", "0"}, {"WORLD_SIZE", "4"}},
                               Map{{"GOSSAMER_RANK", "9"}, {"GOSSAMER_WORLD_SIZE", "x"}}}) {
    const Start start = plan({}, variables);
    EXPECT_FALSE(start.is_rank);
    EXPECT_EQ(start.num_processes, 0);
  }
  // MPI's launchers come first, and so do threads that the user asks for.
  Map addresses = kTorchrun;
  addresses.erase("TORCHELASTIC_RUN_ID");
  EXPECT_FALSE(plan({}, addresses, config_of(""), /*under_mpi=*/true).is_rank);
  EXPECT_FALSE(plan({}, kTorchrun, config_of("comm: {backend: threads}")).is_rank);
  LaunchConfig threads = config_of("");
  threads.options.num_ranks = 4;
  EXPECT_FALSE(plan({}, kTorchrun, threads).is_rank);
}

TEST(StartOfProcesses, HasAParentAndItsRanks) {
  const Start parent = plan({.num_processes = 3}, {});
  EXPECT_EQ(parent.num_processes, 3);
  EXPECT_FALSE(parent.is_rank);
  EXPECT_EQ(parent.place.host, "127.0.0.1");
  EXPECT_EQ(parent.meeting.secret.size(), 64U);
  EXPECT_NE(parent.meeting.secret, plan({.num_processes = 3}, {}).meeting.secret);
  EXPECT_EQ(plan({.num_processes = 3}, kWithSecret).meeting.secret, kSecret);

  Map variables;
  for (const auto& [name, value] : variables_of_rank(parent, 2, {"127.0.0.1", 4321}, 77)) {
    variables[name] = value;
  }
  // The child has the arguments of its parent.
  const Start child = plan({.num_processes = 3}, variables);
  EXPECT_EQ(child.num_processes, 0);
  EXPECT_TRUE(child.is_rank);
  EXPECT_EQ(child.parent, 77);
  EXPECT_EQ(child.place.host, "127.0.0.1");
  EXPECT_EQ(child.place.port, 4321);
  EXPECT_FALSE(child.may_serve);
  EXPECT_EQ(child.meeting.size, 3);
  EXPECT_EQ(child.meeting.rank, 2);
  EXPECT_EQ(child.meeting.run, parent.meeting.run);
  EXPECT_EQ(child.meeting.secret, parent.meeting.secret);
  EXPECT_EQ(child.meeting.store_host, "");

  const LaunchConfig open = config_of("comm: {security: none}");
  EXPECT_EQ(plan({.num_processes = 3}, {}, open).meeting.secret, "");
}

TEST(StartOfProcesses, IsRefusedUnderLaunchers) {
  const StartOptions three{.num_processes = 3};
  EXPECT_CONTAINS(refusal(three, {}, config_of(""), /*under_mpi=*/true),
                  "command line: --processes: ");
  EXPECT_CONTAINS(refusal(three, kTorchrun), "without mpirun, srun and torchrun");
  EXPECT_CONTAINS(refusal(three, kSlurm), "without mpirun, srun and torchrun");
  // One task, or a shell, is no launcher of several.
  EXPECT_EQ(plan(three, with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "1"}})).num_processes, 3);
  EXPECT_EQ(plan(three, with(kSlurm, {{"SLURM_PTY_PORT", "4"}})).num_processes, 3);
  EXPECT_EQ(plan(three, with(kTorchrun, {{"WORLD_SIZE", "1"}})).num_processes, 3);
}

TEST(StartOptions, ContradictOneAnother) {
  LaunchConfig threads = config_of("");
  threads.options.num_ranks = 2;
  EXPECT_CONTAINS(refusal({.num_processes = 2}, {}, threads), "command line: --ranks: ");
  EXPECT_CONTAINS(refusal({.rendezvous = "n1:5", .world_size = 2}, {}, threads), "--ranks");
  EXPECT_CONTAINS(refusal({}, {{"GOSSAMER_RENDEZVOUS", "n1:5"}}, threads), "--ranks");
  threads.backend = "tcp";
  threads.is_auto = false;
  EXPECT_CONTAINS(refusal({}, {}, threads), "--ranks");
  const LaunchConfig given = config_of("comm: {backend: threads}");
  EXPECT_CONTAINS(refusal({.num_processes = 2}, {}, given), "allowed: auto or tcp");
  EXPECT_CONTAINS(refusal({.rendezvous = "n1:5", .world_size = 2}, {}, given),
                  "the backend threads is asked for");
  for (const StartOptions& more : {StartOptions{.num_processes = 2, .rendezvous = "n1:5"},
                                   StartOptions{.num_processes = 2, .world_size = 2},
                                   StartOptions{.num_processes = 2, .rank = 0},
                                   StartOptions{.num_processes = 2, .run_id = "a"}}) {
    EXPECT_CONTAINS(refusal(more, {}), "allowed: without --rendezvous");
  }
  EXPECT_CONTAINS(refusal({.num_processes = 2}, {{"GOSSAMER_RENDEZVOUS", "n1:5"}}),
                  "allowed: without --rendezvous");
  EXPECT_CONTAINS(refusal({.world_size = 2}, {}), "--world-size: is given without --rendezvous");
  EXPECT_CONTAINS(refusal({.rank = 0}, {}), "--rank: is given without --rendezvous");
  EXPECT_CONTAINS(refusal({.run_id = "a"}, {}), "--run-id: is given without --rendezvous");
}

TEST(Rendezvous, IsAnAddress) {
  const Start start = plan({.rendezvous = "n1:29500", .world_size = 4, .rank = 3}, kWithSecret,
                           config_of("comm: {timeout_s: 7, interface: eth1, streams: 4}"));
  EXPECT_TRUE(start.is_rank);
  EXPECT_TRUE(start.may_serve);
  EXPECT_EQ(to_string(start.place), "n1:29500");
  EXPECT_EQ(start.meeting.size, 4);
  EXPECT_EQ(start.meeting.rank, 3);
  EXPECT_EQ(start.meeting.store_host, "n1");
  EXPECT_EQ(start.meeting.interface, "eth1");
  EXPECT_EQ(start.meeting.num_streams, 4);
  EXPECT_EQ(plan({.num_processes = 2}, {}).meeting.num_streams, 0);
  EXPECT_EQ(start.meeting.timeout_s, 7.0);
  EXPECT_EQ(start.meeting.secret, kSecret);
  EXPECT_TRUE(start.meeting.reads_memory);
  EXPECT_LT(plan({.rendezvous = "n1:5", .world_size = 4}, kWithSecret).meeting.rank, 0);
  const LaunchConfig apart = config_of("comm: {shared_memory: false}");
  EXPECT_FALSE(
      plan({.rendezvous = "n1:5", .world_size = 4}, kWithSecret, apart).meeting.reads_memory);
  EXPECT_EQ(plan({.rendezvous = "[fe80::1]:5", .world_size = 4}, kWithSecret).place.host,
            "fe80::1");
  EXPECT_EQ(plan({.rendezvous = "n1:5", .world_size = 4, .run_id = "b-2"}, kWithSecret).meeting.run,
            "b-2");
}

TEST(Rendezvous, ComesFromTheEnvironmentToo) {
  const Map variables = with(kWithSecret, {{"GOSSAMER_RENDEZVOUS", "n1:5"},
                                           {"GOSSAMER_WORLD_SIZE", "4"},
                                           {"GOSSAMER_RANK", "1"},
                                           {"GOSSAMER_RUN_ID", "a"}});
  const Start start = plan({}, variables);
  EXPECT_EQ(to_string(start.place), "n1:5");
  EXPECT_EQ(start.meeting.size, 4);
  EXPECT_EQ(start.meeting.rank, 1);
  EXPECT_EQ(start.meeting.run, "a");
  // Options come first.
  EXPECT_EQ(plan({.rendezvous = "n2:6", .world_size = 8, .rank = 7}, variables).meeting.rank, 7);
  EXPECT_CONTAINS(refusal({}, with(variables, {{"GOSSAMER_WORLD_SIZE", "x"}})),
                  "environment: GOSSAMER_WORLD_SIZE: is x, allowed: 1 to ");
  EXPECT_CONTAINS(refusal({}, with(variables, {{"GOSSAMER_RENDEZVOUS", "n1"}})),
                  "environment: GOSSAMER_RENDEZVOUS: is n1, allowed: HOST:PORT");
}

TEST(Rendezvous, IsRefusedWhereItIsNone) {
  for (const char* const text :
       {"n1", "n1:", ":5", "n1:0", "n1:65536", "n1:x", "fe80::1:5", "[]:5"}) {
    EXPECT_CONTAINS(refusal({.rendezvous = text, .world_size = 2}, kWithSecret),
                    concat("command line: --rendezvous: is ", text, ", allowed: HOST:PORT"));
  }
  EXPECT_CONTAINS(refusal({.rendezvous = "n1:5"}, kWithSecret), "--world-size: is missing");
  EXPECT_CONTAINS(refusal({.rendezvous = "n1:5", .world_size = 4, .rank = 4}, kWithSecret),
                  "--rank: is 4, allowed: 0 to 3");
  EXPECT_CONTAINS(refusal({.rendezvous = "n1:5", .world_size = 4, .run_id = "../a"}, kWithSecret),
                  "--run-id: is ../a, allowed: letters");
  EXPECT_CONTAINS(refusal({.rendezvous = "n1:5", .world_size = 4}, kWithSecret, config_of(""),
                          /*under_mpi=*/true),
                  "mpirun or mpiexec has started this one");
  EXPECT_CONTAINS(refusal({}, {}, tcp()), "--processes N; --rendezvous HOST:PORT");
}

TEST(Rendezvous, IsAFolder) {
  for (const char* const text : {"file:/shared/meet", "/shared/meet"}) {
    const Start start = plan({.rendezvous = text, .world_size = 4}, kWithSecret);
    EXPECT_TRUE(start.is_rank);
    EXPECT_EQ(start.folder, "/shared/meet");
    EXPECT_EQ(start.meeting.size, 4);
  }
  EXPECT_EQ(plan({.rendezvous = "file:meet", .world_size = 4}, kWithSecret).folder, "meet");
}

TEST(Rendezvous, IsEtcd) {
  const std::string text = "etcd:http://n1:2379,https://name:word@n2/";
  const std::vector<std::string> addresses = {"http://n1:2379", "https://name:word@n2"};
  const LaunchConfig survives = config_of("fault: {mode: survive}");
  const Map variables =
      with(kWithSecret, {{"GOSSAMER_RENDEZVOUS", text}, {"GOSSAMER_WORLD_SIZE", "4"}});
  for (const Start& start : {plan({.rendezvous = text, .world_size = 4}, kWithSecret),
                             plan({}, variables), plan({.join = text}, kWithSecret, survives)}) {
    EXPECT_TRUE(start.is_rank);
    EXPECT_EQ(start.store, StoreKind::kEtcd);
    EXPECT_EQ(start.etcd, addresses);
    EXPECT_FALSE(start.may_serve);
    EXPECT_EQ(start.meeting.store_host, "");
  }
  EXPECT_CONTAINS(refusal({.rendezvous = "etcd:n1:2379", .world_size = 4}, kWithSecret),
                  "command line: --rendezvous: is etcd:n1:2379, allowed: etcd: and the addresses");
  EXPECT_CONTAINS(refusal({.join = "etcd:"}, kWithSecret, survives),
                  "command line: --join: is etcd:");
  // Others reach it, and its password stays out of messages.
  const std::string what =
      refusal({.rendezvous = "etcd:http://name:word@127.0.0.1", .world_size = 4}, {});
  EXPECT_CONTAINS(what, "others may reach etcd");
  EXPECT_FALSE(contains(what, "word"));
}

TEST(Torchrun, SaysWhereRanksMeet) {
  const Start start = plan({}, kTorchrun);
  EXPECT_TRUE(start.is_rank);
  EXPECT_EQ(to_string(start.place), "n1:29400");
  EXPECT_FALSE(start.may_serve);
  EXPECT_EQ(start.meeting.size, 8);
  EXPECT_EQ(start.meeting.rank, 5);
  EXPECT_EQ(start.meeting.store_host, "n1");
  EXPECT_TRUE(plan({}, with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).may_serve);
  // The counts of agents differ, so ranks find the name of their attempt in the store.
  EXPECT_EQ(plan({}, with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "3"}})).meeting.run,
            start.meeting.run);
  // All ranks are on this machine, so they need no address that others reach.
  EXPECT_EQ(plan({}, with(kTorchrun, {{"LOCAL_WORLD_SIZE", "8"}})).meeting.store_host, "");
  // It may run in a step of srun, which has connected the agents by PMIx.
  EXPECT_TRUE(plan({}, kTorchrun, config_of(""), /*under_mpi=*/true).is_rank);
  EXPECT_TRUE(plan({}, kTorchrun, tcp()).is_rank);
  EXPECT_CONTAINS(refusal({}, with(kTorchrun, {{"RANK", "8"}})), "RANK: is 8, allowed: 0 to 7");
}

TEST(Slurm, SaysWhereRanksMeet) {
  for (const Start& start : {plan({.rendezvous = "slurm"}, kSlurm), plan({}, kSlurm, tcp())}) {
    EXPECT_TRUE(start.is_rank);
    EXPECT_TRUE(start.may_serve);
    EXPECT_EQ(start.place.host, "n01");
    EXPECT_EQ(start.place.port, 29'747);
    EXPECT_EQ(start.meeting.size, 4);
    EXPECT_EQ(start.meeting.rank, 2);
    EXPECT_EQ(start.meeting.store_host, "n01");
  }
  // srun may have connected the tasks by PMIx as well.
  EXPECT_TRUE(plan({.rendezvous = "slurm"}, kSlurm, config_of(""), /*under_mpi=*/true).is_rank);
  const Start again = plan({.rendezvous = "slurm"}, with(kSlurm, {{"SLURM_RESTART_COUNT", "1"}}));
  EXPECT_NE(again.meeting.run, plan({.rendezvous = "slurm"}, kSlurm).meeting.run);
  const Start one = plan({.rendezvous = "slurm"}, with(kSlurm, {{"SLURM_STEP_NUM_NODES", "1"}}));
  EXPECT_EQ(one.place.host, "127.0.0.1");
  EXPECT_EQ(one.meeting.store_host, "");
}

TEST(Slurm, GivesStepsPortsOfTheirOwn) {
  std::map<int, std::string> owners;
  for (int job = 1'000'000; job < 1'000'500; ++job) {
    for (int step = 0; step < 16; ++step) {
      const std::string owner = concat(job, ".", step);
      const Start start =
          plan({.rendezvous = "slurm"}, with(kSlurm, {{"SLURM_JOB_ID", std::to_string(job)},
                                                      {"SLURM_STEP_ID", std::to_string(step)}}));
      ASSERT_GE(start.place.port, kFirstSlurmPort);
      ASSERT_LT(start.place.port, kFirstSlurmPort + kNumSlurmPorts);
      const auto [other, is_new] = owners.emplace(start.place.port, owner);
      ASSERT_TRUE(is_new) << owner << " and " << other->second;
    }
  }
}

TEST(Slurm, IsRefusedOutsideOfATask) {
  const StartOptions slurm{.rendezvous = "slurm"};
  EXPECT_CONTAINS(refusal(slurm, {}), "srun -n N gossamer");
  EXPECT_CONTAINS(refusal(slurm, with(kSlurm, {{"SLURM_PTY_PORT", "1"}})), "no task of srun");
  EXPECT_CONTAINS(refusal(slurm, with(kSlurm, {{"OMPI_COMM_WORLD_RANK", "1"}})), "no task of srun");
  EXPECT_CONTAINS(refusal({.rendezvous = "slurm", .world_size = 2}, kSlurm),
                  "allowed: without --world-size");
  EXPECT_CONTAINS(refusal(slurm, with(kSlurm, {{"SLURM_STEP_NODELIST", "n["}})), "list of nodes");
}

TEST(SecretOfAStart, IsNeededWhereOthersReachTheStore) {
  const auto without = [](Map variables) {
    variables.erase("GOSSAMER_SECRET");
    return variables;
  };
  EXPECT_CONTAINS(refusal({.rendezvous = "n1:5", .world_size = 2}, {}),
                  "environment: GOSSAMER_SECRET: is not set, and others may reach n1:5");
  EXPECT_CONTAINS(refusal({.rendezvous = "/shared", .world_size = 2}, {}), "gossamer secret -o");
  EXPECT_CONTAINS(refusal({}, without(kTorchrun)), "comm.security=none");
  EXPECT_CONTAINS(refusal({.rendezvous = "slurm"}, without(kSlurm)), "GOSSAMER_SECRET");
  // Nobody else reaches these, or the user trusts the network, or there is nobody to meet.
  EXPECT_TRUE(plan({.rendezvous = "127.0.0.1:5", .world_size = 2}, {}).is_rank);
  EXPECT_TRUE(plan({.rendezvous = "localhost:5", .world_size = 2}, {}).is_rank);
  EXPECT_TRUE(plan({.rendezvous = "n1:5", .world_size = 1}, {}).is_rank);
  const LaunchConfig open = config_of("comm: {security: none}");
  const Start start = plan({.rendezvous = "n1:5", .world_size = 2}, kWithSecret, open);
  EXPECT_EQ(start.meeting.secret, "");
  EXPECT_TRUE(start.meeting.is_open);
  EXPECT_FALSE(plan({.rendezvous = "n1:5", .world_size = 2}, kWithSecret).meeting.is_open);
}

TEST(SecretOfAStart, ComesFromAFileOrTheEnvironment) {
  const Folder folder;
  const std::string path = folder.file("secret");
  const std::string in_file = fresh_secret();
  write_secret_file(path, in_file);
  const StartOptions meet{.rendezvous = "n1:5", .world_size = 2};
  EXPECT_EQ(plan(meet, {{"GOSSAMER_SECRET_FILE", path}}).meeting.secret, in_file);
  const LaunchConfig config = config_of(concat("comm: {secret_file: ", path, "}"));
  EXPECT_EQ(plan(meet, {}, config).meeting.secret, in_file);
  EXPECT_CONTAINS(refusal(meet, {{"GOSSAMER_SECRET", "short"}}),
                  "environment: GOSSAMER_SECRET: has 5 characters");
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  EXPECT_CONTAINS(refusal(meet, {{"GOSSAMER_SECRET_FILE", path}}),
                  concat("environment: GOSSAMER_SECRET_FILE: others may read or write ", path));
  EXPECT_CONTAINS(
      what_of<ConfigError>([&] { config_of(concat("comm: {secret_file: ", path, "}")); }),
      "comm.secret_file: others may read");
  EXPECT_CONTAINS(what_of<ConfigError>([&] {
                    config_of(concat("comm: {security: none, secret_file: ", path, "}"));
                  }),
                  "comm.secret_file: is given, and comm.security: none");
}

TEST(StartStore, IsServedByOneAndKeptForAll) {
  const int port = listen_at({"127.0.0.1", 0}).value().place.port;
  const auto rank_of = [port](int rank) {
    return plan({.rendezvous = concat("127.0.0.1:", port), .world_size = 2, .rank = rank}, {});
  };
  Start first = rank_of(0);
  Start second = rank_of(1);
  EXPECT_TRUE(open_store(first));
  EXPECT_FALSE(open_store(second));
  second.meeting.store->set("key", "value");
  EXPECT_EQ(first.meeting.store->get("key", 10s), "value");
  say_met(first.meeting, 0);
  EXPECT_FALSE(wait_until_all_met(first.meeting, 50ms));
  std::jthread later([&second] {
    std::this_thread::sleep_for(100ms);
    say_met(second.meeting, 1);
  });
  EXPECT_TRUE(wait_until_all_met(first.meeting, 60s));
  later.join();
  // A rank that comes too late does not fail for it.
  first.meeting.store.reset();
  EXPECT_NO_THROW(say_met(second.meeting, 1));
}

TEST(StartStore, IsAFileInAFolder) {
  const Folder folder;
  Start first = plan({.rendezvous = "file:" + folder.file(""), .world_size = 2}, kWithSecret);
  Start second = first;
  EXPECT_FALSE(open_store(first));
  EXPECT_FALSE(open_store(second));
  first.meeting.store->set("key", "value");
  EXPECT_EQ(second.meeting.store->get("key", 10s), "value");
  EXPECT_EQ(folder.list(), std::vector<std::string>{"gossamer-run"});
  EXPECT_EQ(first.meeting.interface, outward_address());
}

TEST(StartStore, OnThisMachineDoesNotHideItsAddress) {
  // As on a machine that takes its own name for the loopback address.
  Start start;
  start.place = listen_at({"127.0.0.1", 0}).value().place;
  start.may_serve = true;
  start.meeting.size = 2;
  start.meeting.store_host = "localhost";
  EXPECT_TRUE(open_store(start));
  EXPECT_EQ(start.meeting.interface, outward_address());
  start.meeting.interface = "eth1";
  EXPECT_FALSE(open_store(start));
  EXPECT_EQ(start.meeting.interface, "eth1");
}

TEST(StartStore, IsNotNeededByOneRank) {
  Start alone = plan({.rendezvous = "n1:5", .world_size = 1}, {});
  EXPECT_FALSE(open_store(alone));
  EXPECT_EQ(alone.meeting.store, nullptr);
  EXPECT_NO_THROW(end_meeting(alone, 0, /*serves=*/false));
}

}  // namespace
}  // namespace gossamer::start_test
