#pragma once
// The messages that the processes of a run send over a Mesh, as texts.
//
// Thread safety: functions without state.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "comm/elastic/agreement.hpp"

namespace gossamer::membership {

/// A process asks a member to let it join. It is connected in both directions with all members of
/// this epoch.
struct AskToJoin {
  std::int64_t epoch = 0;
  /// A description of the training, as lines. The member refuses a process with another
  /// description.
  std::string trains = {};
};
/// A member does not let a process join, for this reason.
struct Refuse {
  std::string why = {};
};
/// What a member tells the others of its epoch when the epoch begins, for Participant::gather().
struct Entry {
  std::int64_t epoch = 0;
  std::string text = {};
};

using Message = std::variant<Report, Epoch, AskToJoin, Entry, Refuse>;

std::string encode(const Message& message);
/// The message of a text; nothing for texts that no member sends.
std::optional<Message> decode(const std::string& text);

}  // namespace gossamer::membership
