#include "apps/train/sections.hpp"

namespace gossamer::apps {
namespace {

constexpr std::array kTopologyOptions = option_list(kTopologyName);
constexpr std::array kBucketOptions = option_list(kBucketSizeMb);
constexpr std::array kAlgorithmOptions = option_list(kAlgorithmName);

constexpr std::array kSections = {
    SectionEntry{"run", "how long a run is, and what it leaves", run_section::kOptions},
    SectionEntry{"device", "where and how the ranks compute", device_section::kOptions},
    SectionEntry{"model", "what is trained", model_section::kOptions},
    SectionEntry{"data", "what it is trained on", data_section::kOptions},
    SectionEntry{"algorithm",
                 "what the ranks send one another; or its name alone, as in algorithm=allreduce; "
                 "docs/guide/algorithms.md compares them",
                 kAlgorithmOptions},
    SectionEntry{"algorithm.phases",
                 "in place of name: several algorithms one after the other "
                 "(docs/guide/switching.md)",
                 phase_section::kOptions,
                 "[{until: 100, algorithm: allreduce}, {until: 900, algorithm: gossip, topology: "
                 "ring}, {algorithm: allreduce}]"},
    SectionEntry{"algorithm.consensus_control",
                 "beside name, for an algorithm of a topology: a sparse topology is enough while "
                 "the ranks are close to their mean",
                 consensus_section::kOptions,
                 "{target: 0.02, hysteresis: 0.5, every: 50, topology: {every: {base: ring, "
                 "period: 4}}}"},
    SectionEntry{"topology", "which ranks mix with one another in which round", kTopologyOptions},
    SectionEntry{"optimizer", "how gradients move the parameters", optimizer_section::kOptions},
    SectionEntry{"optimizer.groups",
                 "parameters with numbers of their own; what a group does not give is that of the "
                 "section, unless its optimizer is another one",
                 group_section::kOptions,
                 "[{match: head, lr: 0.0003}, {match: \"embedding|norm\", weight_decay: 0, betas: "
                 "[0.9, 0.95]}, {match: first, vectors: true, optimizer: adamw}]"},
    SectionEntry{"lr_schedule", "the learning rate of each step", schedule_section::kOptions},
    SectionEntry{"train", "gradients, the loss, and when a run ends early",
                 train_section::kOptions},
    SectionEntry{"buckets", "parameters travel and are updated in buckets", kBucketOptions},
    SectionEntry{"comm", "how the ranks reach one another", comm_section::kOptions},
    SectionEntry{"fault", "what happens when a rank dies", fault_section::kOptions},
    SectionEntry{"log", "what a run tells and records", log_section::kOptions},
};

}  // namespace

std::span<const SectionEntry> section_table() { return kSections; }

}  // namespace gossamer::apps
