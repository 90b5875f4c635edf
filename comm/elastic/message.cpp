#include "comm/elastic/message.hpp"

#include <array>
#include <cstddef>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/text.hpp"

namespace gossamer::membership {
namespace {

// The first line of each kind, in the order of Message.
constexpr std::array<std::string_view, 5> kHeads = {"report\n", "epoch\n", "join\n", "entry\n",
                                                    "refuse\n"};

/// The numbers in one line, the member's own address, and a line for each newcomer.
std::string body_of(const Report& report) {
  std::string text = concat(report.from.id, " ", report.epoch, " ", report.step);
  for (const MemberId id : report.lost) text += concat(" ", id);
  text += concat("\n", report.from.address, "\n");
  for (const std::string& newcomer : report.newcomers) text += concat(newcomer, "\n");
  return text;
}
std::string body_of(const Epoch& epoch) { return to_text(epoch); }
std::string body_of(const AskToJoin& ask) { return concat(ask.epoch, "\n", ask.trains); }
std::string body_of(const Entry& entry) { return concat(entry.epoch, "\n", entry.text); }
std::string body_of(const Refuse& refuse) { return refuse.why; }

std::optional<Message> report_of(const std::string& body) {
  std::istringstream lines(body);
  std::string line;
  std::getline(lines, line);
  std::istringstream numbers(line);
  Report report;
  numbers >> report.from.id >> report.epoch >> report.step;
  if (numbers.fail() || report.from.id < 0 || report.epoch < 0 || report.step < 0) return {};
  for (MemberId id = 0; numbers >> id;) report.lost.insert(id);
  if (!numbers.eof()) return {};
  std::getline(lines, report.from.address);
  if (!is_address(report.from.address)) return {};
  while (std::getline(lines, line)) {
    if (!is_address(line)) return {};
    report.newcomers.insert(line);
  }
  return report;
}

/// A message that is the number of an epoch in one line, and then a text.
template <class Numbered>
std::optional<Message> numbered_of(const std::string& body, std::string Numbered::*text) {
  const std::size_t end = body.find('\n');
  Numbered message;
  if (end == std::string::npos ||
      !parse_whole(std::string_view(body).substr(0, end), message.epoch)) {
    return {};
  }
  message.*text = body.substr(end + 1);
  return message;
}

}  // namespace

std::string encode(const Message& message) {
  return concat(kHeads.at(message.index()),
                std::visit([](const auto& known) { return body_of(known); }, message));
}

std::optional<Message> decode(const std::string& text) {
  const auto body = [&](std::size_t kind) { return text.substr(kHeads.at(kind).size()); };
  if (text.starts_with(kHeads[0])) return report_of(body(0));
  if (text.starts_with(kHeads[1])) {
    if (auto epoch = epoch_of(body(1))) return std::move(*epoch);
  }
  if (text.starts_with(kHeads[2])) return numbered_of(body(2), &AskToJoin::trains);
  if (text.starts_with(kHeads[3])) return numbered_of(body(3), &Entry::text);
  if (text.starts_with(kHeads[4])) return Refuse{body(4)};
  return {};
}

}  // namespace gossamer::membership
