#include "comm/elastic/local_mesh.hpp"

#include <array>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace gossamer::membership {
namespace {

/// Meshes of processes a, b and c, and what their hooks are called with.
struct Meshes {
  Meshes() {
    for (std::size_t i = 0; i < meshes.size(); ++i) {
      meshes[i] = make_local_mesh(network, std::string(1, static_cast<char>('a' + i)));
      std::vector<std::string>& events = heard[i];
      meshes[i]->start(
          {.heard = [&events](const std::string& from,
                              const std::string& text) { events.push_back(from + ": " + text); },
           .lost = [&events](const std::string& address,
                             const std::string&) { events.push_back(address + " is lost"); }});
    }
  }

  using Events = std::vector<std::string>;
  std::array<Events, 3> heard;
  std::shared_ptr<LocalNetwork> network = std::make_shared<LocalNetwork>();
  std::array<std::unique_ptr<Mesh>, 3> meshes;
};

TEST(LocalMesh, CarriesTextsInOrder) {
  Meshes all;
  all.meshes[0]->send("b", "1");
  all.meshes[0]->send("b", "2");
  all.meshes[2]->send("b", "3");
  all.meshes[1]->send("b", "to itself");
  EXPECT_EQ(all.heard[1], (Meshes::Events{"a: 1", "a: 2", "c: 3"}));
  EXPECT_EQ(all.heard[0], Meshes::Events());
}

TEST(LocalMesh, TellsTheOtherOneWhenItIsDropped) {
  Meshes all;
  all.meshes[0]->drop("b");
  all.meshes[0]->send("b", "x");
  all.meshes[1]->send("a", "x");
  EXPECT_EQ(all.heard[0], Meshes::Events());
  EXPECT_EQ(all.heard[1], Meshes::Events{"a is lost"});
  EXPECT_EQ(all.heard[2], Meshes::Events());
}

TEST(LocalMesh, TellsAllWhenItCloses) {
  Meshes all;
  all.meshes[0]->drop("b");
  all.meshes[1]->close();
  all.meshes[2]->send("b", "x");
  EXPECT_EQ(all.heard[0], Meshes::Events()) << "it has lost it before";
  EXPECT_EQ(all.heard[1], Meshes::Events{"a is lost"});
  EXPECT_EQ(all.heard[2], Meshes::Events{"b is lost"});
}

TEST(LocalMesh, TellsBothWhenItIsCut) {
  Meshes all;
  all.network->cut("c", "a");
  all.network->cut("a", "c");
  EXPECT_EQ(all.heard[0], Meshes::Events{"c is lost"});
  EXPECT_EQ(all.heard[2], Meshes::Events{"a is lost"});
}

}  // namespace
}  // namespace gossamer::membership
