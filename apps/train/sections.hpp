#pragma once
// The sections of a run's configuration, and the keys that they have beside those of plug-ins.
// Code reads these constants; `gossamer list` and configs/reference.yaml show them. All of it is
// constant and thread safe.

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "apps/data/dataset.hpp"
#include "apps/models/losses.hpp"
#include "apps/models/models.hpp"
#include "apps/train/precision.hpp"
#include "base/log.hpp"
#include "base/option.hpp"
#include "comm/device/device_transport.hpp"
#include "comm/options.hpp"
#include "comm/tcp/stream_count.hpp"
#include "core/algorithms/algorithm.hpp"
#include "core/bucket/bucket_options.hpp"
#include "optim/codec.hpp"
#include "optim/registry.hpp"
#include "topology/registry.hpp"

namespace gossamer::apps {

inline constexpr std::int64_t kMaxCount = 1'000'000'000;

namespace run_section {
inline constexpr IntegerOption kSeed{
    "seed", "model, data, shards and batches follow from it", {.fallback = 1, .min = 0}};
inline constexpr OptionalIntegerOption kSteps{
    "steps", "steps to make", {{.min = 1, .max = kMaxCount}}, "as many as the epochs take"};
inline constexpr IntegerOption kEpochs{
    "epochs",
    "passes over the training data; does not count when steps are given",
    {.fallback = 1, .min = 1, .max = kMaxCount}};
/// read_run_config() knows the default.
inline constexpr PathOption kOutputDir{
    "output_dir",
    "the folder of the run; a folder that is named here and holds a finished run is refused "
    "without --overwrite; ~/ is your home folder",
    {.fallback = "runs/reference"},
    "runs/ and the name of the configuration file, and -2, -3, ... when that folder is taken"};
inline constexpr TextOption kCheckpointEvery{
    "checkpoint_every",
    "a number of steps, as 500; a time, as 15 minutes; or never; SIGTERM, SIGINT, SIGHUP and "
    "SIGUSR1 save one, too, and end the run (docs/guide/checkpoints.md)",
    {.fallback = "15 minutes"}};
inline constexpr IntegerOption kKeep{
    "keep", "checkpoints that stay", {.fallback = 3, .min = 1, .max = kMaxCount}};
inline constexpr ChoiceOption kCheckpointFailure{
    "checkpoint_failure",
    "when a checkpoint cannot be saved: warn, and go on; end: the run ends with exit code 4",
    {.words = {"warn", "end"}, .fallback = "warn"}};
inline constexpr IntegerOption kThreads{
    "threads",
    "compute threads per rank; 0: the ranks of a host share the cores that they may use "
    "(docs/guide/starting.md)",
    {.fallback = 0, .min = 0, .max = 4096}};
inline constexpr std::array kOptions = option_list(
    kSeed, kSteps, kEpochs, kOutputDir, kCheckpointEvery, kKeep, kCheckpointFailure, kThreads);
}  // namespace run_section

namespace device_section {
inline constexpr ChoiceOption kName{
    "name",
    "cuda: the rank's place on its node says which GPU; auto: GPUs if there are any",
    {.words = {"auto", "cpu", "cuda"}, .fallback = "cpu"}};
inline constexpr ChoiceOption kPrecision{
    "precision",
    "bf16: LibTorch's autocast computes in bfloat16, parameters stay float32; bf16_parameters: "
    "matrices are bfloat16 too, with float32 master copies that are mixed, updated and "
    "exchanged; fp16: autocast in float16, with a scaled loss and train.nonfinite: skip",
    {.fallback = "float32", .names = precision_names}};
inline constexpr FlagOption kGraph{
    "graph",
    "true: GPUs play forward and backward passes back from a CUDA graph; helps small models"};
inline constexpr std::array kOptions =
    option_list(kName, kSharesGpus, kGpuExchange, kPrecision, kGraph);
}  // namespace device_section

namespace model_section {
inline constexpr ChoiceOption kName{
    "name",
    "gpt takes text and tokens, torchscript what it was written for (docs/guide/own-models.md), "
    "mlp images and tables, the others images",
    {.fallback = "mlp", .names = model_names}};
inline constexpr PathOption kInit{
    "init",
    "a safetensors file with the initial values, as a run's model.safetensors; \"\": none",
    {.fallback = ""}};
inline constexpr FlagOption kInitPartial{
    "init_partial",
    "true: values that the file lacks, or has in other shapes, stay as the model draws them"};
inline constexpr std::array kOptions = option_list(kName, kInit, kInitPartial);
}  // namespace model_section

namespace data_section {
inline constexpr ChoiceOption kName{"name",
                                    "docs/guide/own-models.md shows how to train on your own data",
                                    {.fallback = "glyphs", .names = dataset_names}};
inline constexpr IntegerOption kBatchSize{
    "batch_size",
    "images or windows per step and rank; at most what a rank has",
    {.fallback = 32, .min = 1, .max = 1'000'000}};
inline constexpr IntegerOption kPrefetch{"prefetch",
                                         "batches that a thread makes ahead of time; 0: no thread",
                                         {.fallback = 2, .min = 0, .max = 1'000}};
inline constexpr OptionalNumberOption kDirichletAlpha{
    "dirichlet_alpha",
    "the smaller, the more the ranks' labels differ (Hsu et al., 2019); null: every rank has the "
    "same mixture of labels",
    {{.min = 1e-6, .max = 1e6}}};
inline constexpr IntegerOption kCrop{
    "crop",
    "images: every training image moves by up to so many pixels, at random, over black",
    {.fallback = 0, .min = 0, .max = 10'000}};
inline constexpr FlagOption kFlip{"flip",
                                  "true: every second training image is mirrored, at random"};
inline constexpr std::array kOptions =
    option_list(kName, kBatchSize, kPrefetch, kDirichletAlpha, kCrop, kFlip);
}  // namespace data_section

/// The keys of an item of `algorithm.phases`.
namespace phase_section {
inline constexpr NamedOption kAlgorithm{"algorithm", "the algorithm of the phase"};
inline constexpr IntegerOption kUntil{
    "until",
    "the first step of the next phase, more than that of the phase before",
    {.min = 1, .max = kManyRounds - 1},
    "but in the last phase"};
inline constexpr NamedOption kTopology{
    "topology", "the topology of the phase", {.fallback = "null"}, "that of the section topology"};
inline constexpr FlagOption kAverage{"average",
                                     "true: all ranks begin the phase from their mean",
                                     {},
                                     "true with allreduce, outer, late_average and node_gossip"};
inline constexpr std::array kOptions = option_list(kUntil, kAlgorithm, kTopology, kAverage);
}  // namespace phase_section

namespace consensus_section {
inline constexpr NumberOption kTarget{
    "target",
    "the relative distance of the ranks from their mean that is allowed at the full learning rate",
    {.min = 0.0, .max = 1e6, .above_min = true}};
inline constexpr NumberOption kHysteresis{
    "hysteresis",
    "the sparse topology is taken below (1 - hysteresis) times the target",
    {.fallback = 0.5, .min = 0.0, .max = 1.0, .below_max = true}};
inline constexpr IntegerOption kEvery{
    "every", "steps between two measurements", {.fallback = 50, .min = 1, .max = kMaxCount}};
inline constexpr NamedOption kTopology{"topology", "the sparse topology"};
inline constexpr std::array kOptions = option_list(kTarget, kHysteresis, kEvery, kTopology);
}  // namespace consensus_section

namespace optimizer_section {
inline constexpr NumberOption kLr{"lr", "learning rate", {.fallback = 1e-3, .min = 0.0}};
inline constexpr NumberOption kWeightDecay{
    "weight_decay", "as the optimizer takes it", {.fallback = 0.0, .min = 0.0}};
inline constexpr FlagOption kDecayBiasAndNorm{
    "decay_bias_and_norm", "true: biases and normalisation parameters are decayed as well"};
inline constexpr std::array kOptions =
    option_list(kOptimizerName, kLr, kWeightDecay, kDecayBiasAndNorm);
}  // namespace optimizer_section

/// The keys of an item of `optimizer.groups`, beside those of the optimizer.
namespace group_section {
inline constexpr TextOption kMatch{
    "match",
    "a regular expression; a parameter is in the first group whose expression fits a part of its "
    "name",
    {},
    "unless vectors is true"};
inline constexpr FlagOption kVectors{"vectors",
                                     "true: the group also takes biases and normalisation"};
inline constexpr ChoiceOption kOptimizer{"optimizer",
                                         "another one than the section's, as beside muon",
                                         {.names = [] { return optimizer_names(); }},
                                         "for another one than the section's"};
inline constexpr NumberOption kLr{
    "lr",
    "the group's rate is the schedule's, times this over the section's lr",
    {.min = 0.0},
    "for another one than the section's"};
inline constexpr NumberOption kWeightDecay{
    "weight_decay", "of the group", {.min = 0.0}, "for another one than the section's"};
inline constexpr std::array kOptions = option_list(kMatch, kVectors, kOptimizer, kLr, kWeightDecay);
}  // namespace group_section

namespace schedule_section {
inline constexpr ChoiceOption kName{"name",
                                    "how the learning rate changes during a run",
                                    {.fallback = "constant", .names = schedule_names}};
inline constexpr std::array kOptions = option_list(kName);
}  // namespace schedule_section

namespace train_section {
inline constexpr ChoiceOption kDiverged{
    "diverged",
    "when the loss is 1000 times that of the beginning, or the ranks' models drift apart: warn: "
    "say it once and go on; stop: end with exit code 76, and leave the checkpoints as they are",
    {.words = {"warn", "stop"}, .fallback = "warn"}};
inline constexpr ChoiceOption kLoss{"loss",
                                    "auto: cross_entropy for classes, mse for numbers",
                                    {.fallback = "auto", .names = loss_names}};
inline constexpr IntegerOption kAccumulate{
    "accumulate",
    "batches of a step; the step uses the mean of their gradients",
    {.fallback = 1, .min = 1, .max = 1'000'000}};
inline constexpr OptionalNumberOption kEma{
    "ema",
    "also keeps a moving average of the mean model, with this factor for the old values, and "
    "evaluates and saves the average (model_ema.safetensors)",
    {{.min = 0.0, .max = 1.0, .above_min = true, .below_max = true}}};
inline constexpr IntegerOption kPatience{
    "patience",
    "the run ends after so many evaluations without a better loss of the mean model; 0: it does "
    "not",
    {.fallback = 0, .min = 0, .max = kMaxCount}};
inline constexpr std::array kOptions = option_list(kNonfinite, kDiverged, kGradClip, kGradClipNorm,
                                                   kRecipe, kLoss, kAccumulate, kEma, kPatience);
}  // namespace train_section

namespace comm_section {
inline constexpr ChoiceOption kBackend{
    "backend",
    "auto: mpi under mpirun, mpiexec and srun; tcp with --processes, --rendezvous or torchrun; "
    "else threads (docs/guide/starting.md)",
    {.words = {"auto", "threads", "mpi", "tcp"}, .fallback = "auto"}};
inline constexpr FlagOption kSharedMemory{
    "shared_memory",
    "false: ranks of one host send messages, and do not read each other's memory",
    {.fallback = true}};
inline constexpr IntegerOrWordOption kStreams{
    "streams",
    "tcp: connections that share the messages between two ranks; auto: one on a near link, and on "
    "a far link as many as help",
    {.word = "auto", .rule = {.min = 1, .max = tcp::StreamCount::kMax}}};
inline constexpr TextOption kInterface{
    "interface",
    "tcp: the network interface (eth1), or the address, of this host at which the others reach "
    "it; \"\": the one that leads to where the ranks meet; may differ between hosts",
    {.fallback = ""}};
inline constexpr ChoiceOption kSecurity{
    "security",
    "tcp: ranks know one another by a secret, and encrypt what they send; none: neither, for a "
    "network that you trust",
    {.words = {"secret", "none"}, .fallback = "secret"}};
inline constexpr PathOption kSecretFile{
    "secret_file",
    "tcp: a file with the secret, which gossamer secret -o FILE writes; \"\": GOSSAMER_SECRET or "
    "GOSSAMER_SECRET_FILE says it; may differ between hosts",
    {.fallback = ""}};
inline constexpr std::array kOptions =
    option_list(kBackend, kCodecName, kSharedMemory, kStreams, kInterface, kSecurity, kSecretFile);
}  // namespace comm_section

namespace fault_section {
inline constexpr ChoiceOption kMode{
    "mode",
    "when a rank dies: abort: the run ends with exit code 74; survive: the others go on, and new "
    "ones may join; survive needs the backend tcp or threads, processors, and an algorithm that "
    "survives, as gossamer list algorithms says (docs/guide/fault_tolerance.md)",
    {.words = {"abort", "survive"}, .fallback = "abort"}};
inline constexpr IntegerOrWordOption kMinRanks{
    "min_ranks",
    "the fewest ranks that go on; majority: more than half of those before; a number: so many, "
    "and more than half",
    {.word = "majority", .rule = {.min = 1, .max = 1'000'000}}};
inline constexpr FlagOption kResync{
    "resync", "true: those that are left go on from their mean", {.fallback = true}};
inline constexpr FlagOption kScaleLr{
    "scale_lr",
    "true: the learning rate is that of the configuration times the number of ranks over that at "
    "the beginning"};
inline constexpr ChoiceOption kFallbackTopology{
    "fallback_topology",
    "in place of a topology that does not fit those that are left",
    {.words = {"base-k", "complete", "random-matching", "ring"}, .fallback = "base-k"}};
inline constexpr NumberOption kSilence{
    "silence_s",
    "seconds without a sign of life after which a rank counts as dead",
    {.fallback = 10.0, .min = 0.1, .max = 3600.0}};
inline constexpr std::array kOptions =
    option_list(kMode, kMinRanks, kResync, kScaleLr, kFallbackTopology, kSilence);
}  // namespace fault_section

namespace log_section {
inline constexpr ChoiceOption kLevel{
    "level", "of the messages that ranks write", {.fallback = "info", .names = log_level_names}};
inline constexpr ChoiceOption kProgress{
    "progress",
    "bar: one line written over; lines: log lines; auto: bar on a terminal",
    {.words = {"auto", "bar", "lines"}, .fallback = "auto"}};
inline constexpr IntegerOption kEvery{"every",
                                      "steps between two records of loss and speed; 0: none",
                                      {.fallback = 10, .min = 0, .max = kMaxCount}};
inline constexpr IntegerOption kConsensusEvery{
    "consensus_every",
    "steps between two measurements of the consensus distance; 0: none",
    {.fallback = 0, .min = 0, .max = kMaxCount}};
inline constexpr IntegerOption kEvalEvery{"eval_every",
                                          "steps between two evaluations; 0: only at the end",
                                          {.fallback = 0, .min = 0, .max = kMaxCount}};
inline constexpr FlagOption kTensorboard{
    "tensorboard", "true: records also go into an event file, for `tensorboard --logdir runs`"};
inline constexpr PathOption kTimeline{
    "timeline",
    "a file for the timeline of all ranks, for https://ui.perfetto.dev; \"\": none",
    {.fallback = ""}};
inline constexpr RangeOption kTimelineSteps{
    "timeline_steps",
    "steps that the timeline records: [10, 30] leaves 10 steps out, and records until 30 steps "
    "are done; a run that is resumed counts anew",
    {},
    "[10, 30], or fewer in a shorter run"};
inline constexpr FlagOption kReport{
    "report", "at the end the run is written as one page, report.html", {.fallback = true}};
inline constexpr std::array kOptions =
    option_list(kLevel, kProgress, kEvery, kConsensusEvery, kEvalEvery, kTensorboard, kTimeline,
                kTimelineSteps, kReport);
}  // namespace log_section

struct SectionEntry {
  /// The dotted path, as `algorithm.phases`.
  std::string_view name;
  std::string_view summary;
  /// The keys beside those of plug-ins.
  std::span<const OptionEntry> options;
  /// A value of a section that is left out of a configuration unless it is wanted; empty: the
  /// section is always there.
  std::string_view example = {};
};

/// The sections in the order of configs/reference.yaml.
std::span<const SectionEntry> section_table();

}  // namespace gossamer::apps
