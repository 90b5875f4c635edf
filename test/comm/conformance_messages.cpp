// Tagged messages: messages between two ranks that agree on no time.

#include "test/comm/conformance.hpp"
#include "test/comm/values.hpp"

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gossamer {
namespace {

constexpr int kNumMessages = 4;
// More than MPI sends without asking.
constexpr std::int64_t kLargest = 70'001;

std::int64_t numel_of(int tag) { return tag == 0 ? kLargest : tag; }

/// What rank `from` writes into its `number`-th tagged message with this tag.
std::vector<std::int64_t> text_of(int from, int tag, int number) {
  return values_of<std::int64_t>(from, numel_of(tag), 10 * tag + number);
}

/// Everything that must work although tagged messages are not there yet.
void do_other_things(Communicator& communicator) {
  std::vector<double> sent = {1.0};
  std::vector<double> sum = {0.0};
  communicator.all_reduce_sum(block_of(std::span(sent)), block_of(std::span(sum)), {}).wait();
  require(sum[0] == communicator.size(), "a sum beside messages");
  const int peer = communicator.rank() ^ 1;
  if (peer < communicator.size()) {
    std::vector<double> received = {0.0};
    sent[0] = communicator.rank();
    communicator.exchange(peer, block_of(std::span(sent)), block_of(std::span(received)), {})
        .wait();
    require(received[0] == peer, "an exchange beside messages");
  }
  communicator.barrier();
}

}  // namespace

void sends_messages(Communicator& communicator) {
  const int size = communicator.size();
  const int next = (communicator.rank() + 1) % size;
  const int last = (communicator.rank() + size - 1) % size;
  if (size == 1) return;

  // Received long before they are sent, with tags in one order.
  std::vector<std::vector<std::int64_t>> inboxes;
  std::vector<std::shared_ptr<RequestState>> arrivals;
  std::vector<Request> requests;
  for (int tag = 0; tag < 3; ++tag) {
    for (int number = 0; number < kNumMessages; ++number) {
      auto& inbox = inboxes.emplace_back(static_cast<std::size_t>(numel_of(tag)));
      requests.push_back(communicator.receive(last, tag, block_of(std::span(inbox)),
                                              {.label = {.what = "message"}}));
      arrivals.push_back(requests.back().state());
    }
  }
  do_other_things(communicator);
  for (const Request& request : requests) require(!request.done(), "no message has been sent");
  communicator.barrier();

  // Sent with tags in the other order.
  std::vector<std::vector<std::int64_t>> texts;
  for (int number = 0; number < kNumMessages; ++number) {
    for (int tag = 2; tag >= 0; --tag) {
      auto& text = texts.emplace_back(text_of(communicator.rank(), tag, number));
      requests.push_back(
          communicator.send(next, tag, block_of(std::span(text)), {.label = {.what = "message"}}));
    }
  }
  RequestState::wait_for_any(arrivals);
  for (Request& request : requests) request.wait();
  auto inbox = inboxes.begin();
  for (int tag = 0; tag < 3; ++tag) {
    for (int number = 0; number < kNumMessages; ++number) {
      require(*inbox++ == text_of(last, tag, number), "message ", number, " with tag ", tag);
    }
  }

  // Sent long before it is received; a small one, because a large one may stay with its sender.
  std::int64_t early = communicator.rank();
  const Request sent = communicator.send(next, 1, block_of(std::span(&early, 1)), {});
  do_other_things(communicator);
  std::int64_t heard = -1;
  communicator.receive(last, 1, block_of(std::span(&heard, 1)), {}).wait();
  require(heard == last, "a letter that was early");
  communicator.barrier();
}

}  // namespace gossamer
