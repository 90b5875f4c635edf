#include "comm/membership/inbox.hpp"

#include <algorithm>
#include <utility>
#include <variant>

#include "base/text.hpp"

namespace gossamer::membership {

Inbox::Inbox(std::unique_ptr<Mesh> mesh, Logger logger, bool holds)
    : mesh_(std::move(mesh)), logger_(std::move(logger)), holds_(holds) {
  mesh_->start(
      {.heard = [this](const std::string& from, const std::string& text) { hear(from, text); },
       .lost =
           [this](const std::string& address, const std::string& reason) {
             logger_.debug(concat(address, " is lost: ", reason));
             push({.from = address});
           }});
}

Inbox::~Inbox() { mesh_->close(); }

void Inbox::set_epoch(const Epoch& epoch) {
  {
    const std::lock_guard lock(mutex_);
    epoch_ = epoch;
    num_disturbing_ = 0;
    for (Event& event : events_) {
      event.disturbs = disturbs(event);
      if (event.disturbs) ++num_disturbing_;
    }
  }
  for (const Member& member : epoch.members) mesh_->watch(member.address);
}

void Inbox::hear(const std::string& from, const std::string& text) {
  std::optional<Message> message = decode(text);
  if (!message) {
    logger_.warning(concat("what ", from,
                           " says cannot be understood; all ranks need one version of gossamer"));
    return;
  }
  const Report* const report = std::get_if<Report>(&*message);
  if (report != nullptr && report->from.address != from) return;
  std::string answer;
  {
    const std::lock_guard lock(mutex_);
    const bool is_late = report != nullptr && report->epoch < epoch_.number;
    const bool has_joined = std::holds_alternative<AskToJoin>(*message) && epoch_.has(from);
    if (is_late || has_joined) answer = encode(epoch_);
  }
  // It does not know this epoch yet. For the others nothing changes.
  if (!answer.empty()) return mesh_->send(from, answer);
  push({.from = from, .message = std::move(message)});
}

bool Inbox::is_news(const Epoch& epoch) const {
  return epoch.number >= epoch_.number && epoch != epoch_;
}

bool Inbox::disturbs(const Event& event) const {
  // The end of a connection with somebody else says nothing about the epoch.
  if (!event.message) return epoch_.has(event.from);
  if (const Epoch* const epoch = std::get_if<Epoch>(&*event.message)) return is_news(*epoch);
  if (const Report* const report = std::get_if<Report>(&*event.message)) {
    return report->epoch >= epoch_.number;
  }
  return std::holds_alternative<AskToJoin>(*event.message);
}

void Inbox::push(Event event) {
  {
    const std::lock_guard lock(mutex_);
    if (holds_ && event.message && std::holds_alternative<AskToJoin>(*event.message)) {
      held_.push_back(std::move(event));
      return;
    }
    // Whoever is gone asks no more.
    if (!event.message) {
      std::erase_if(held_, [&](const Event& one) { return one.from == event.from; });
    }
    event.disturbs = disturbs(event);
    if (event.disturbs) ++num_disturbing_;
    events_.push_back(std::move(event));
  }
  changed_.notify_all();
}

void Inbox::admit(bool admits) {
  std::deque<Event> held;
  {
    const std::lock_guard lock(mutex_);
    holds_ = !admits;
    if (admits) held.swap(held_);
  }
  for (Event& event : held) push(std::move(event));
}

std::optional<Inbox::Event> Inbox::poll() { return next(std::chrono::milliseconds(0)); }

std::optional<Inbox::Event> Inbox::next(std::chrono::milliseconds longest) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, longest, [this] { return !events_.empty(); })) return std::nullopt;
  Event event = std::move(events_.front());
  events_.pop_front();
  if (event.disturbs) --num_disturbing_;
  return event;
}

std::optional<Inbox::Event> Inbox::next_before(std::chrono::steady_clock::time_point end,
                                               const std::function<void()>& while_waiting) {
  constexpr auto kSlice = std::chrono::milliseconds(100);
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    const bool is_last = left <= kSlice;
    auto event = next(is_last ? std::max(left, std::chrono::milliseconds(0)) : kSlice);
    if (event || is_last) return event;
    if (while_waiting) while_waiting();
  }
}

}  // namespace gossamer::membership
