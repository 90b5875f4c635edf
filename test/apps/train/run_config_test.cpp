// The configuration contract: keys, types, ranges, places in error messages.

#include "apps/train/run_config.hpp"

#include "test/apps/train/config_text.hpp"
#include "test/base/thrown.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "apps/train/advice.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

/// One key of a section, behind the lines that choose its plug-in.
struct KeyCase {
  std::string section;
  std::string before;
  std::string key;
  std::string value;
  /// What is recorded, or a part of the message.
  std::string expected;

  [[nodiscard]] std::string path() const { return concat(section, ".", key); }
  [[nodiscard]] std::string yaml() const {
    const std::string first = before.empty() ? "" : concat("  ", before, "\n");
    return concat(section, ":\n", first, "  ", key, ": ", value, "\n");
  }
  /// `conf.yaml:LINE:COLUMN: section.key: `.
  [[nodiscard]] std::string place() const {
    return concat("conf.yaml:", before.empty() ? 2 : 3, ":", key.size() + 5, ": ", path(), ": ");
  }
};

const std::vector<KeyCase> kGood = {
    {"run", "", "seed", "0", "0"},
    {"run", "", "seed", "9223372036854775807", "9223372036854775807"},
    {"run", "", "steps", "1000000000", "1000000000"},
    {"run", "", "steps", "null", "null"},
    {"run", "", "epochs", "3", "3"},
    {"run", "", "output_dir", "a b/c", "\"a b/c\""},
    {"run", "", "output_dir", "\"quote \\\" and \\\\ slash\"", "\"quote \\\" and \\\\ slash\""},
    {"run", "", "threads", "4096", "4096"},
    {"model", "", "name", "cnn", "cnn"},
    {"model", "name: cnn", "width", "1", "1"},
    {"model", "", "hidden", "100000", "100000"},
    {"data", "", "name", "glyphs", "glyphs"},
    {"data", "", "batch_size", "1", "1"},
    {"data", "", "dirichlet_alpha", "1e-6", "1e-06"},
    {"data", "", "dirichlet_alpha", "null", "null"},
    {"data", "", "noise", "0", "0"},
    {"topology", "", "name", "Alternating_Exp-Ring", "alternating-exp-ring"},
    {"optimizer", "", "name", "Accum-Adam", "accum_adam"},
    {"optimizer", "", "lr", "+1.5E-3", "0.0015"},
    {"optimizer", "", "weight_decay", ".5", "0.5"},
    {"optimizer", "", "decay_bias_and_norm", "true", "true"},
    {"optimizer", "", "betas", "[0, 0.5]", "[0, 0.5]"},
    {"optimizer", "", "eps", "0.0", "0"},
    {"optimizer", "", "accum_iter", "1", "1"},
    {"optimizer", "name: sgd", "momentum", "0.9", "0.9"},
    {"lr_schedule", "", "name", "Cosine-With-Warmup", "cosine_with_warmup"},
    {"lr_schedule", "name: step", "step_size", "7", "7"},
    {"lr_schedule", "name: step", "gamma", "0.5", "0.5"},
    {"lr_schedule", "name: linear", "end_factor", "1", "1"},
    {"lr_schedule", "name: linear", "t_max", "9", "9"},
    {"lr_schedule", "name: cosine_with_warmup", "eta_min", "1e-05", "1e-05"},
    {"lr_schedule", "name: cosine_with_warmup", "t_warmup", "20", "20"},
    {"lr_schedule", "name: cosine_with_warmup", "warmup_decay", "0", "0"},
    {"buckets", "", "size_mb", "0.02", "0.02"},
    {"buckets", "", "size_mb", "auto", "auto"},
    {"comm", "", "backend", "AUTO", "auto"},
    {"comm", "", "timeout_s", "0.5", "0.5"},
    {"comm", "", "shared_memory", "false", "false"},
    {"comm", "", "local_size", "2", "2"},
    {"comm", "", "streams", "AUTO", "auto"},
    {"comm", "", "streams", "64", "64"},
    {"log", "", "level", "off", "off"},
    {"log", "", "progress", "bar", "bar"},
    {"log", "", "every", "0", "0"},
    {"log", "", "consensus_every", "5", "5"},
    {"log", "", "eval_every", "1000000000", "1000000000"},
};

/// The lines that choose the plug-in whose key it is.
std::string choice_of(const KeyCase& c) {
  return c.before.empty() ? "" : concat(c.section, ":\n  ", c.before, "\n");
}

TEST(GoodValue, IsReadFromFileAndCommandLine) {
  for (const KeyCase& c : kGood) {
    SCOPED_TRACE(c.yaml());
    EXPECT_EQ(resolved(read_text(c.yaml()).resolved, c.path()), c.expected);
    // An override is typed as the file is.
    const auto overridden = read_text(choice_of(c), {concat(c.path(), "=", c.value)});
    EXPECT_EQ(resolved(overridden.resolved, c.path()), c.expected);
  }
}

const std::vector<KeyCase> kBad = {
    {"run", "", "seed", "-1", "an integer >= 0"},
    {"run", "", "seed", "9223372036854775808", "is not an integer"},
    {"run", "", "steps", "0", "an integer from 1 to 1000000000"},
    {"run", "", "epochs", "-3", "an integer from 1 to 1000000000"},
    {"run", "", "output_dir", "\"\"", "is empty"},
    {"run", "", "threads", "4097", "an integer from 0 to 4096"},
    {"model", "", "name", "mpl", "did you mean mlp?"},
    {"model", "", "name", "{a: 1}", "is a mapping"},
    {"model", "", "hidden", "0", "an integer from 1 to 100000"},
    {"model", "name: cnn", "width", "10001", "an integer from 1 to 10000"},
    {"data", "", "name", "mnist", "one of glyphs, idx"},
    {"data", "", "train_size", "0", "an integer from 1"},
    {"data", "", "val_size", "10000001", "to 10000000"},
    {"data", "", "noise", "1.01", "a number >= 0 and <= 1"},
    {"data", "", "batch_size", "0", "an integer from 1 to 1000000"},
    {"data", "", "dirichlet_alpha", "0", "a number >= 1e-06"},
    {"data", "name: idx", "path", "\"\"", "is empty"},
    {"topology", "", "name", "ringg", "did you mean ring?"},
    {"optimizer", "", "name", "adamww", "did you mean adamw?"},
    {"optimizer", "", "name", "sdg", "did you mean sgd?"},
    {"optimizer", "", "lr", "-0.1", "a number >= 0"},
    {"optimizer", "", "lr", "fast", "fast is not a number"},
    {"optimizer", "", "weight_decay", "-1", "a number >= 0"},
    {"optimizer", "", "decay_bias_and_norm", "1", "true or false"},
    {"optimizer", "", "betas", "[0.9]", "a list of two"},
    {"optimizer", "", "eps", "-1e-8", "a number >= 0"},
    {"optimizer", "", "accum_iter", "0", "an integer from 1"},
    {"optimizer", "name: sgd", "momentum", "1", "a number >= 0 and < 1"},
    {"optimizer", "name: sgd", "nesterov", "true", "needs momentum"},
    {"lr_schedule", "", "name", "cosine", "one of constant, cosine_with_warmup, step, linear"},
    {"lr_schedule", "name: cosine_with_warmup", "t_warmup", "-1", "an integer >= 0"},
    {"lr_schedule", "name: cosine_with_warmup", "t_max", "0", "an integer >= 1"},
    {"lr_schedule", "name: cosine_with_warmup", "warmup_decay", "2", "a number >= 0 and <= 1"},
    {"lr_schedule", "name: cosine_with_warmup", "eta_min", "-1", "a number >= 0"},
    {"lr_schedule", "name: step", "step_size", "0", "an integer >= 1"},
    {"lr_schedule", "name: step", "gamma", "0", "a number > 0"},
    {"lr_schedule", "name: linear", "end_factor", "1.5", "a number >= 0 and <= 1"},
    {"buckets", "", "size_mb", "0", "a number > 0"},
    {"buckets", "", "size_mb", "small", "and <= 1e+06, or auto"},
    {"comm", "", "backend", "nccl", "one of auto, threads"},
    {"comm", "", "timeout_s", "0", "a number > 0"},
    {"comm", "", "local_size", "-1", "an integer from 0"},
    {"comm", "", "streams", "65", "an integer from 1 to 64, or auto"},
    {"log", "", "level", "warnings", "did you mean warning?"},
    {"log", "", "progress", "dots", "one of auto, bar, lines"},
    {"log", "", "every", "-1", "an integer from 0"},
    {"log", "", "consensus_every", "-1", "an integer from 0"},
    {"log", "", "eval_every", "1.5", "is not an integer"},
};

TEST(BadValue, IsRefusedAtItsPlace) {
  for (const KeyCase& c : kBad) {
    SCOPED_TRACE(c.yaml());
    const auto expect = [&](const std::string& message, const std::string& place) {
      EXPECT_TRUE(message.starts_with(place)) << message << "\nbegins not with " << place;
      EXPECT_NE(message.find(c.expected), std::string::npos) << message;
      EXPECT_NE(message.find("allowed: "), std::string::npos) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    };
    expect(refusal(c.yaml()), c.place());
    expect(refusal(choice_of(c), {concat(c.path(), "=", c.value)}),
           concat("command line: ", c.path(), ": "));
  }
}

TEST(RunConfig, SurvivesOnDevicesThatAllRanksHave) {
  const auto refused = [](const std::string& device) {
    return refusal(concat("fault: {mode: survive}\ndevice: {", device, "}\n"));
  };
  EXPECT_EQ(refused("name: cpu"), "");
  EXPECT_EQ(refused("name: cuda"), "");
  EXPECT_TRUE(contains(refused("name: auto"), "device.name: is auto, and a rank that joins"));
  EXPECT_TRUE(contains(refused("name: cuda, graph: true"), "device.graph: is true"));
  EXPECT_TRUE(contains(refused("name: cuda, precision: fp16"), "device.precision: is fp16"));
}

TEST(RunConfig, HasADefaultForEverything) {
  const RunConfig config = read_text("");
  EXPECT_EQ(config.seed, 1U);
  EXPECT_FALSE(config.steps);
  EXPECT_EQ(config.epochs, 1);
  EXPECT_EQ(config.output_dir, "runs/conf");
  EXPECT_EQ(config.batch_size, 32);
  EXPECT_FALSE(config.dirichlet_alpha);
  EXPECT_EQ(config.exchange.algorithm.name(), "gossip");
  ASSERT_NE(config.exchange.topology, nullptr);
  EXPECT_EQ(config.exchange.topology->name(), "ring");
  ASSERT_NE(config.model, nullptr);
  ASSERT_NE(config.data, nullptr);
  ASSERT_NE(config.optimizer, nullptr);
  EXPECT_EQ(config.optimizer->num_states(), 3);
  EXPECT_EQ(config.lr, 1e-3);
  EXPECT_EQ(config.weight_decay, 0.0);
  EXPECT_FALSE(config.decay_bias_and_norm);
  EXPECT_EQ(config.make_schedule(10)->lr(5), 1e-3);
  EXPECT_EQ(config.bucket_bytes, 25 * 1024 * 1024);
  EXPECT_EQ(config.comm.log_level(), LogLevel::kInfo);
  EXPECT_EQ(config.progress, "auto");
  EXPECT_EQ(config.log_every, 10);
  EXPECT_EQ(config.consensus_every, 0);
  EXPECT_EQ(config.eval_every, 0);
}

TEST(RunConfig, ReadsGroupsOfParameters) {
  const RunConfig config = read_text(
      "optimizer:\n"
      "  name: adamw\n"
      "  lr: 0.01\n"
      "  eps: 0.001\n"
      "  groups:\n"
      "    - {match: head, lr: 0.002, weight_decay: 0}\n"
      "    - {match: 'norm|bias', betas: [0.5, 0.6]}\n");
  ASSERT_EQ(config.parameter_groups.size(), 2U);
  const ParameterGroup& head = config.parameter_groups[0];
  EXPECT_EQ(head.match, "head");
  EXPECT_EQ(head.lr_factor, 0.2);
  EXPECT_EQ(head.weight_decay, 0.0);
  EXPECT_EQ(head.optimizer, nullptr);
  const ParameterGroup& norm = config.parameter_groups[1];
  EXPECT_EQ(norm.lr_factor, 1.0);
  EXPECT_EQ(norm.weight_decay, std::nullopt);
  ASSERT_NE(norm.optimizer, nullptr);
  // What the group does not say is that of the optimizer.
  const auto value_of = [](const RunConfig& read, const std::string& path) {
    const auto found = std::ranges::find(read.resolved, path, &ResolvedValue::path);
    return found == read.resolved.end() ? "(none)" : found->value;
  };
  EXPECT_EQ(value_of(config, "optimizer.groups[1].eps"), "0.001");
  EXPECT_EQ(value_of(config, "optimizer.groups[1].betas"), "[0.5, 0.6]");
  EXPECT_EQ(value_of(config, "optimizer.groups[0].eps"), "(none)");
  EXPECT_EQ(value_of(config, "optimizer.groups[1].lr"), "(none)");
  // The values that are written down give the same run.
  EXPECT_EQ(to_yaml(read_text(to_yaml(config.resolved)).resolved), to_yaml(config.resolved));
}

TEST(RunConfig, ReadsGroupsWithAnotherOptimizer) {
  const RunConfig config = read_text(
      "optimizer:\n"
      "  name: muon\n"
      "  lr: 0.01\n"
      "  groups:\n"
      "    - {match: 'embed|head', vectors: true, optimizer: adamw, lr: 0.002, betas: [0.8, 0.9]}\n"
      "    - {vectors: true, lr: 0.1}\n");
  const ParameterGroup& first = config.parameter_groups.at(0);
  EXPECT_EQ(first.match, "embed|head");
  EXPECT_TRUE(first.vectors);
  EXPECT_EQ(first.lr_factor, 0.2);
  ASSERT_NE(first.optimizer, nullptr);
  EXPECT_TRUE(same_kind(*first.optimizer, *make_optimizer("adamw")));
  EXPECT_EQ(config.parameter_groups.at(1).match, std::nullopt);
  EXPECT_EQ(config.parameter_groups.at(1).optimizer, nullptr);
  EXPECT_EQ(to_yaml(read_text(to_yaml(config.resolved)).resolved), to_yaml(config.resolved));
}

TEST(RunConfig, RefusesGroupsOfParametersThatAreNone) {
  const auto refused = [](const std::string& groups, const std::string& optimizer = "lr: 0.1") {
    return refusal(concat("optimizer: {", optimizer, ", groups: [", groups, "]}\n"));
  };
  EXPECT_TRUE(contains(refused("{lr: 0.1}"), "optimizer.groups[0].match: is missing"));
  EXPECT_TRUE(contains(refused("{match: 'a('}"), "optimizer.groups[0].match: 'a(' is no regular"));
  EXPECT_TRUE(contains(refused("{match: a, lr: -1}"), "optimizer.groups[0].lr"));
  EXPECT_TRUE(contains(refused("{match: a, name: sgd}"), "optimizer.groups[0].name"));
  EXPECT_TRUE(contains(refused("{match: a, beta: 1}"), "optimizer.groups[0].beta"));
  EXPECT_TRUE(contains(refused("{match: a, lr: 1}", "lr: 0"), "a multiple of optimizer.lr"));
  EXPECT_TRUE(contains(refused("{match: a, warmup: 3}", "name: qadam"), "is the same for all"));
  EXPECT_TRUE(
      contains(refused("{match: a, optimizer: sgd}", "name: qadam"), "is the same for all"));
  EXPECT_TRUE(
      contains(refused("{match: a, optimizer: qadam}", "name: sgd"), "is the same for all"));
  EXPECT_TRUE(contains(refused("{match: a, optimizer: moun}"), "did you mean muon?"));
  EXPECT_TRUE(contains(refused("{match: a, optimizer: sgd, eps: 1}"), "optimizer.groups[0].eps"));
  EXPECT_TRUE(
      contains(refused("{match: a, beta: 1}"), "weight_decay, optimizer, betas, eps, accum_iter"));
}

TEST(RunConfig, AdvisesToShareMomentsWhereLabelsDiffer) {
  const auto advice = [](const std::string& yaml) { return advice_at_start(read_text(yaml)); };
  const std::string uneven = "data: {dirichlet_alpha: 0.5}\n";
  EXPECT_NE(advice(uneven).find("algorithm.share_moments=32"), std::string::npos);
  EXPECT_EQ(advice(""), "");
  EXPECT_EQ(advice(uneven + "algorithm: {name: gossip, share_moments: 8}\n"), "");
  EXPECT_EQ(advice(uneven + "algorithm: allreduce\n"), "");
  const std::string outer = uneven + "algorithm: {name: outer, every: 6";
  EXPECT_TRUE(contains(advice(outer + "}\n"),
                       "algorithm.share_moments=18 and algorithm.share_momentum=18"));
  EXPECT_EQ(advice(outer + ", share_moments: 12}\n"), "");
  EXPECT_TRUE(contains(advice(outer + ", kind: noloco}\n"), "share_momentum=18"));
  // Moments do not travel for several steps.
  EXPECT_EQ(advice(outer + ", late: 2}\n"), "");
  EXPECT_EQ(advice(uneven + "optimizer: {name: sgd}\n"), "");
}

TEST(RunConfig, RefusesAMomentumThatFollowsMixingWhereAveragesAreRare) {
  const std::string optimizer = "optimizer: {name: adamw, mixing_momentum: 0.3}\n";
  for (const char* const algorithm : {"outer", "late_average"}) {
    EXPECT_TRUE(contains(refusal(concat(optimizer, "algorithm: ", algorithm, "\n")),
                         "take optimizer.mixing_momentum=0"))
        << algorithm;
  }
  for (const char* const algorithm : {"gossip", "allreduce", "gradient_tracking"}) {
    EXPECT_NO_THROW(read_text(concat(optimizer, "algorithm: ", algorithm, "\n"))) << algorithm;
  }
}

TEST(RunConfig, WarnsOfOrthogonalStepsWhereLabelsDiffer) {
  const auto advice = [](const std::string& yaml) {
    return advice_at_start(read_text(concat("optimizer: {name: muon}\n", yaml)));
  };
  const std::string uneven = "data: {dirichlet_alpha: 0.5}\n";
  EXPECT_TRUE(contains(advice(uneven), "algorithm.name=gradient_tracking"));
  EXPECT_EQ(advice(""), "");
  EXPECT_NE(advice(concat(uneven, "algorithm: outer\n")), "");
  for (const char* const algorithm : {"gradient_tracking", "allreduce"}) {
    EXPECT_EQ(advice(concat(uneven, "algorithm: ", algorithm, "\n")), "") << algorithm;
  }
}

TEST(RunConfig, ReadsPhasesOfAlgorithms) {
  const RunConfig config = read_text(
      "algorithm: {phases: [{until: 10, algorithm: allreduce}, {until: 20, algorithm: gossip, "
      "topology: one-peer-exp, average: true}, {until: 30, algorithm: gossip}, {algorithm: {name: "
      "outer, every: 3}}]}\ntopology: {name: static-ring}\n");
  EXPECT_EQ(config.exchange.algorithm.name(), "allreduce");
  EXPECT_EQ(config.exchange.topology, nullptr);
  ASSERT_EQ(config.phases.size(), 4U);
  std::vector<std::int64_t> first;
  std::vector<bool> averages;
  for (const RunPhase& phase : config.phases) {
    first.push_back(phase.first_step);
    averages.push_back(phase.method.averages());
    EXPECT_FALSE(phase.control);
  }
  EXPECT_EQ(first, (std::vector<std::int64_t>{0, 10, 20, 30}));
  EXPECT_EQ(averages, (std::vector<bool>{true, true, false, true}));
  EXPECT_EQ(describe(config.phases),
            "allreduce, gossip on one-peer-exp from step 10 on, gossip on static-ring from step 20 "
            "on, outer from step 30 on");
  // What is resolved reads back.
  EXPECT_EQ(read_text(to_yaml(config.resolved)).resolved, config.resolved);
  EXPECT_EQ(config.phases[3].method.algorithm.text(),
            "outer {every: 3, kind: slowmo, rounds: all, lr: 1, momentum: 0.5, streaming: false, "
            "overlap: true, late: 1, "
            "blend: 0, error_decay: 1, share_moments: 0, share_momentum: 0}");
}

TEST(RunConfig, RefusesPhasesThatAreNone) {
  struct Refused {
    const char* phases;
    const char* text;
  };
  const std::vector<Refused> all = {
      {"[]", "algorithm.phases: is"},
      {"[{until: 3, algorithm: gossip}]", "phases[0].until: the last phase has no end"},
      {"[{algorithm: gossip}, {algorithm: local}]", "phases[0].until: is missing"},
      {"[{until: 3, algorithm: local}, {until: 3, algorithm: local}, {algorithm: local}]",
       "phases[1].until: 3 is out of range"},
      {"[{topology: ring}]", "phases[0].algorithm.name: is missing"},
      {"[{algorithm: gosip}]", "did you mean gossip?"},
      {"[{algorithm: local, topology: ring}]", "phases[0].topology: local uses none"},
      {"[{algorithm: allreduce, average: false}]", "phases[0].average: is false"},
      {"[{algorithm: choco, topology: ring}]", "phases[0].topology: the algorithm choco needs"},
      {"[{algorithm: gossip, topology: ringg}]", "did you mean ring?"},
      {"[{algorithm: gossip, steps: 3}]", "phases[0].steps: unknown key"},
  };
  for (const Refused& refused : all) {
    const std::string text = refusal(concat("algorithm: {phases: ", refused.phases, "}\n"));
    EXPECT_NE(text.find(refused.text), std::string::npos) << text;
    EXPECT_TRUE(text.starts_with("conf.yaml:1:")) << text;
  }
  EXPECT_NE(refusal("algorithm: {name: gossip, phases: [{algorithm: gossip}]}\n")
                .find("algorithm.phases: stands beside name"),
            std::string::npos);
  EXPECT_NE(
      refusal("algorithm: {phases: [{until: 2, algorithm: gossip}, {algorithm: late_average}]}\n"
              "comm: {codec: bf16}\n")
          .find("comm.codec: the algorithm late_average sends no encoded blocks"),
      std::string::npos);
}

TEST(RunConfig, ReadsConsensusControl) {
  const std::string rest =
      "topology: {every: {base: ring, period: 4}}}}\ntopology: {name: one-peer-exp}\n";
  const auto control =
      read_text("algorithm: {name: gossip, consensus_control: {target: 0.25, " + rest)
          .phases.front()
          .control;
  ASSERT_TRUE(control);
  EXPECT_EQ(control->target, 0.25);
  EXPECT_EQ(control->hysteresis, 0.5);
  EXPECT_EQ(control->every, 50);
  EXPECT_EQ(control->sparse->name(), "every {base: ring, period: 4}");
  struct Refused {
    const char* yaml;
    const char* text;
  };
  const std::vector<Refused> all = {
      {"{name: gossip, consensus_control: {topology: ring}}", "control.target: is missing"},
      {"{name: gossip, consensus_control: {target: 0, topology: ring}}", "a number > 0"},
      {"{name: gossip, consensus_control: {target: 1}}", "consensus_control.topology"},
      {"{name: gossip, consensus_control: {target: 1, hysteresis: 1, topology: ring}}", "< 1"},
      {"{name: gossip, consensus_control: {target: 1, every: 0, topology: ring}}", "from 1"},
      {"{name: outer, consensus_control: {target: 1, topology: ring}}", "outer has none"},
      {"{name: gradient_tracking, consensus_control: {target: 1, topology: static-exp}}",
       "consensus_control.topology: the algorithm gradient_tracking needs"},
  };
  for (const Refused& refused : all) {
    const std::string text = refusal(concat("algorithm: ", refused.yaml, "\n"));
    EXPECT_NE(text.find(refused.text), std::string::npos) << text;
  }
}

TEST(ConsensusControl, HasHysteresisAndFollowsTheLearningRate) {
  const ConsensusControl control{.target = 1.0, .hysteresis = 0.5, .every = 1};
  EXPECT_FALSE(control.chooses_sparse(false, 0.51, 1.0));
  EXPECT_TRUE(control.chooses_sparse(false, 0.5, 1.0));
  EXPECT_TRUE(control.chooses_sparse(true, 1.0, 1.0));
  EXPECT_FALSE(control.chooses_sparse(true, 1.01, 1.0));
  EXPECT_FALSE(control.chooses_sparse(false, 0.5, 0.9));
  EXPECT_FALSE(control.chooses_sparse(true, 1.0, 0.9));
  EXPECT_FALSE(control.chooses_sparse(true, std::nan(""), 1.0));
}

TEST(RunConfig, TakesEveryValueToItsPlace) {
  const RunConfig config = read_text(
      "run: {seed: 7, steps: 12, output_dir: out, threads: 3}\n"
      "data: {batch_size: 5, dirichlet_alpha: 0.25}\n"
      "algorithm: local\n"
      "optimizer: {name: sgd, momentum: 0.5, lr: 0.5, weight_decay: 0.125}\n"
      "lr_schedule: {name: linear}\n"
      "buckets: {size_mb: 0.5}\n"
      "log: {level: error, progress: lines, every: 2, consensus_every: 3, eval_every: 4}\n");
  EXPECT_EQ(config.seed, 7U);
  EXPECT_EQ(config.steps, 12);
  EXPECT_EQ(config.epochs, 1);
  EXPECT_EQ(config.output_dir, "out");
  EXPECT_EQ(config.threads, 3);
  EXPECT_EQ(config.batch_size, 5);
  EXPECT_EQ(config.dirichlet_alpha, 0.25);
  EXPECT_EQ(config.exchange.algorithm.name(), "local");
  EXPECT_EQ(config.exchange.topology, nullptr);
  EXPECT_EQ(config.optimizer->num_states(), 1);
  EXPECT_EQ(config.lr, 0.5);
  EXPECT_EQ(config.weight_decay, 0.125);
  EXPECT_EQ(config.make_schedule(10)->lr(5), 0.25);
  EXPECT_EQ(config.bucket_bytes, 512 * 1024);
  EXPECT_EQ(config.comm.log_level(), LogLevel::kError);
  EXPECT_EQ(config.progress, "lines");
  EXPECT_EQ(config.log_every, 2);
  EXPECT_EQ(config.consensus_every, 3);
  EXPECT_EQ(config.eval_every, 4);
}

}  // namespace
}  // namespace gossamer::apps
