#include "comm/elastic/inbox.hpp"

#include <algorithm>
#include <utility>
#include <variant>

#include "base/first_difference.hpp"
#include "base/text.hpp"
#include "comm/cohort.hpp"

namespace gossamer::membership {

Inbox::Inbox(std::unique_ptr<Mesh> mesh, Config config)
    : mesh_(std::move(mesh)),
      config_(std::move(config)),
      watch_(config_.grace, config_.end_broken) {
  mesh_->start(
      {.heard = [this](const std::string& from, const std::string& text) { hear(from, text); },
       .met = [this](const std::string& address) { meet(address); },
       .lost = [this](const std::string& address,
                      const std::string& reason) { lose(address, reason); }});
}

Inbox::~Inbox() { close(); }

void Inbox::close() {
  mesh_->close();
  watch_.disarm();
}

void Inbox::note_broken(const std::string& why) {
  if (!config_.end_broken) return;
  watch_.arm(concat(why, ", and this rank has not ended by itself; restart the node as a whole"));
}

void Inbox::set_epoch(const Epoch& epoch) {
  Answers answers;
  {
    const std::lock_guard lock(mutex_);
    epoch_ = epoch;
    num_disturbing_ = 0;
    std::deque<Event> before;
    before.swap(events_);
    for (Event& event : before) {
      // It has asked in the epoch that is over.
      const auto* const ask = event.message ? std::get_if<AskToJoin>(&*event.message) : nullptr;
      if (ask != nullptr) {
        asking_.try_emplace(event.from, *ask);
      } else {
        push(std::move(event));
      }
    }
    answers = answer_waiting();
  }
  send(answers);
  for (const Member& member : epoch.members) mesh_->watch(member.address);
}

void Inbox::hear(const std::string& from, const std::string& text) {
  std::optional<Message> message = decode(text);
  if (!message) {
    config_.logger.warning(concat(
        "what ", from, " says cannot be understood; all ranks need one version of gossamer"));
    return;
  }
  Answers answers;
  {
    const std::lock_guard lock(mutex_);
    if (const auto* const ask = std::get_if<AskToJoin>(&*message)) {
      asking_[from] = *ask;
      answers = answer_waiting();
    } else {
      const Report* const report = std::get_if<Report>(&*message);
      if (report != nullptr && report->from.address != from) return;
      const Epoch* const epoch = std::get_if<Epoch>(&*message);
      if (epoch != nullptr && epoch->number > epoch_.number && epoch_.has(mesh_->address()) &&
          !epoch->has(mesh_->address()) && cohort_of(mesh_->address()).size > 1 &&
          !watch_.is_armed()) {
        note_broken("the other nodes have gone on without this rank's node");
      }
      if (report != nullptr && report->epoch < epoch_.number) {
        // It does not know this epoch yet. For the others nothing changes.
        answers.emplace_back(from, encode(epoch_));
      } else {
        push({.from = from, .message = std::move(message)});
      }
    }
  }
  send(answers);
}

void Inbox::meet(const std::string& address) {
  Answers answers;
  {
    const std::lock_guard lock(mutex_);
    met_.insert(address);
    push({.from = address, .has_met = true});
    answers = answer_waiting();
  }
  send(answers);
}

void Inbox::lose(const std::string& address, const std::string& reason) {
  config_.logger.debug(concat(address, " is lost: ", reason));
  if (are_mates(address, mesh_->address())) {
    note_broken(concat("the rank at place ", cohort_of(address).place,
                       " of this rank's node is lost: ", reason));
  }
  const std::lock_guard lock(mutex_);
  met_.erase(address);
  asking_.erase(address);
  push({.from = address, .reason = reason});
}

bool Inbox::is_news(const Epoch& epoch) const {
  return epoch.number >= epoch_.number && epoch != epoch_;
}

bool Inbox::disturbs(const Event& event) const {
  // The connection with a process that is no member says nothing about the epoch.
  if (!event.message) return event.is_loss() && epoch_.has(event.from);
  if (const Epoch* const epoch = std::get_if<Epoch>(&*event.message)) return is_news(*epoch);
  if (const Report* const report = std::get_if<Report>(&*event.message)) {
    return report->epoch >= epoch_.number;
  }
  return std::holds_alternative<AskToJoin>(*event.message);
}

void Inbox::push(Event event) {
  event.disturbs = disturbs(event);
  if (event.disturbs) ++num_disturbing_;
  events_.push_back(std::move(event));
  changed_.notify_all();
}

bool Inbox::is_ready(const std::string& from, const AskToJoin& ask) const {
  return ask.epoch == epoch_.number && ask.trains == config_.trains && !config_.holds &&
         met_.contains(from);
}

Inbox::Answers Inbox::answer_waiting() {
  Answers answers;
  const auto num_mates = [this](const std::string& address) {
    return std::ranges::count_if(asking_, [&](const auto& entry) {
      return are_mates(entry.first, address) && is_ready(entry.first, entry.second);
    });
  };
  std::set<std::string> ready;
  for (const auto& [from, ask] : asking_) {
    const int size = cohort_of(from).size;
    if (is_ready(from, ask) && (size == 1 || num_mates(from) == size)) ready.insert(from);
  }
  for (auto entry = asking_.begin(); entry != asking_.end();) {
    const auto& [from, ask] = *entry;
    const auto difference = first_difference(config_.trains, ask.trains);
    if (epoch_.has(from) || ask.epoch < epoch_.number) {
      answers.emplace_back(from, encode(epoch_));
    } else if (difference) {
      answers.emplace_back(
          from, encode(Refuse{concat("the run has ", difference->one, ", and this process has ",
                                     difference->other)}));
    } else if (!ready.contains(from)) {
      ++entry;
      continue;
    } else {
      push({.from = from, .message = ask});
    }
    entry = asking_.erase(entry);
  }
  return answers;
}

void Inbox::send(const Answers& answers) {
  for (const auto& [to, text] : answers) mesh_->send(to, text);
}

void Inbox::admit(bool admits) {
  Answers answers;
  {
    const std::lock_guard lock(mutex_);
    config_.holds = !admits;
    answers = answer_waiting();
  }
  send(answers);
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
