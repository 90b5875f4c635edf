// The C++ of the documents' pages, in programs that run: docs/guide/switching.md, checkpoints.md,
// ddp.md and topologies.md quote this file (scripts/check_docs.py compares them).

#include "test/core/torch/scenario.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include "base/text.hpp"
#include "core/checkpoint/state_file.hpp"
#include "optim/registry.hpp"
#include "topology/edge_weights.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

using Model = DecentralizedDataParallel<torch::nn::LinearImpl>;

/// A path that no other rank, test or process uses.
std::string own_path(const Communicator& peers, const char* name) {
  return concat(testing::TempDir(), "documents_", getpid(), "_", peers.rank(), "_", name);
}

void train_on_ranks(const std::function<void(Model&, const std::shared_ptr<torch::nn::LinearImpl>&,
                                             Communicator&)>& body) {
  on_ranks(2, [&](Communicator& peers) {
    auto net = std::make_shared<torch::nn::LinearImpl>(3, 2);
    Model model(net, peers,
                {.exchange = {.topology = make_topology("ring", {.size = 2})},
                 .optimizer = make_optimizer("sgd"),
                 .schedule = make_schedule("constant", {.lr = 0.1})});
    model.forward(wave({4, 3}, peers.rank(), torch::kFloat32)).sum().backward();
    body(model, net, peers);
    model.drain();
  });
}

TEST(Documents, SwitchTheAlgorithm) {
  train_on_ranks([](Model& model, const auto&, Communicator&) {
    const std::shared_ptr<const Topology> ring = make_topology("ring", {.size = 2});
    model.switch_to({.algorithm = "allreduce"});
    model.switch_to({.algorithm = {"outer", Options::parse("every: 20")}});
    model.switch_to({.algorithm = "gossip", .topology = ring, .average = true});
  });
}

TEST(Documents, SaveAndLoadAState) {
  train_on_ranks([](Model& model, const auto&, Communicator& peers) {
    const std::string path = own_path(peers, "state.safetensors");
    gossamer::StateSnapshot snapshot;
    model.visit(snapshot);  // after the first step; collective
    snapshot.write(path);   // may run on another thread

    const gossamer::SafetensorsFile file(path);
    gossamer::StateLoader loader(file);
    model.visit(loader);  // of a new wrapper, or of a trained one; collective
    loader.check_all_loaded();
    std::filesystem::remove(path);
  });
}

TEST(Documents, WriteParameters) {
  train_on_ranks([](Model& model, const auto& net, Communicator&) {
    {
      auto scope = model.write_parameters();  // on every rank, between two steps
      torch::NoGradGuard no_grad;
      net->weight.clamp_(-0.1, 0.1);
    }
    EXPECT_LE(net->weight.abs().max().template item<float>(), 0.1F);
  });
}

TEST(Documents, TrainOnDifferentNumbersOfBatches) {
  train_on_ranks([](Model& model, const auto&, Communicator& peers) {
    const std::vector<torch::Tensor> batches(peers.rank() == 0 ? 3 : 1,
                                             wave({4, 3}, 0.5, torch::kFloat32));
    const auto loss_of = [&model](const torch::Tensor& batch) {
      return model.forward(batch).sum();
    };
    const auto own = static_cast<double>(batches.size());
    const auto counts = gossamer::gather_numbers(peers, own);  // of all ranks
    const auto most = static_cast<std::size_t>(*std::max_element(counts.begin(), counts.end()));
    for (std::size_t step = 0; step < most; ++step) {
      if (step < batches.size()) {
        loss_of(batches[step]).backward();
      } else {
        model.finish_step();
      }
    }
    EXPECT_EQ(model.engine().progress().num_steps, 4);
  });
}

TEST(Documents, ChooseWhoGetsGradientsAndFinishByHand) {
  train_on_ranks([](Model& model, const auto&, Communicator& peers) {
    const auto generator = std::make_shared<torch::nn::LinearImpl>(3, 3);
    auto loss = model.forward(generator->forward(wave({4, 3}, 0.5, torch::kFloat32))).sum();
    loss.backward({}, /*retain_graph=*/false, /*create_graph=*/false, generator->parameters());
    EXPECT_EQ(model.engine().progress().num_steps, 1);

    loss = model.forward(wave({4, 3}, peers.rank(), torch::kFloat32)).sum();
    model.set_accumulate_grad(true);
    loss.backward();
    model.finish_step();
    EXPECT_EQ(model.engine().progress().num_steps, 2);
  });
}

TEST(Documents, GiveEdgesOtherWeights) {
  const std::shared_ptr<const Topology> ring = make_topology("ring", {.size = 4});
  auto gentle = gossamer::with_edge_weights(ring, [](const gossamer::Edge& edge, std::int64_t k) {
    return k < 1000 ? edge.weight : 0.5 * (1.0 + edge.weight);  // half the way to the mix, later on
  });
  EXPECT_EQ(gentle->round(999).edges.front().weight, 0.5);
  EXPECT_EQ(gentle->round(1000).edges.front().weight, 0.75);
}

}  // namespace
}  // namespace gossamer
