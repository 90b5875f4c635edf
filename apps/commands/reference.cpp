#include "apps/commands/reference.hpp"

#include <algorithm>
#include <sstream>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "apps/commands/list.hpp"
#include "apps/train/sections.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

constexpr std::size_t kWidth = 120;
constexpr std::size_t kCommentColumn = 26;

constexpr std::string_view kHead =
    "Every key of a run's configuration, with its default; `gossamer list --yaml` prints this "
    "file. A key that is left out has the value shown here. Keys of other models, data sets, "
    "optimizers and so on than the default ones stand as comments in their sections. Any key can "
    "be set on the command line: `optimizer.lr=0.01`.";
constexpr std::string_view kTail =
    "Names may be written with - or _. Unknown and duplicate keys, anchors and aliases are "
    "refused.";

/// Prints `# ` and words, in lines of at most kWidth columns. The first line already stands at
/// `column`; the others begin with `margin`, which ends with a `#`.
void print_comment(std::ostream& out, const std::string& text, std::size_t column,
                   const std::string& margin) {
  std::istringstream words(text);
  out << '#';
  ++column;
  for (std::string word; words >> word;) {
    if (column + 1 + word.size() > kWidth) {
      out << '\n' << margin;
      column = margin.size();
    }
    out << ' ' << word;
    column += 1 + word.size();
  }
  out << '\n';
}

/// Prints `key: value  # text`, where `start` is the beginning of the line.
void print_line(std::ostream& out, const std::string& start, const std::string& text) {
  const std::size_t column = std::max(start.size() + 1, kCommentColumn);
  out << start << std::string(column - start.size(), ' ');
  print_comment(out, text, column, std::string(kCommentColumn, ' ') + "#");
}

/// An option, and the plug-ins that have it.
struct Shared {
  const OptionEntry* option;
  std::vector<std::string_view> owners;
  /// The default plug-in has it, or all have it.
  bool is_default = false;
  /// All plug-ins of the kind have it.
  bool is_common = false;
};

bool are_equal(const OptionEntry& a, const OptionEntry& b) {
  return a.name == b.name && a.text() == b.text();
}

/// What stands behind the value of an option.
std::string explained(const OptionEntry& option) {
  const bool is_plain = std::holds_alternative<FlagRule>(option.rule) ||
                        std::holds_alternative<TextRule>(option.rule) ||
                        std::holds_alternative<PathRule>(option.rule);
  std::string text(option.meaning);
  if (!is_plain) text += concat("; ", option.range());
  if (!option.fallback()) {
    text += concat("; must be given", option.note.empty() ? "" : " ", option.note);
  } else if (!option.note.empty()) {
    text += concat("; default: ", option.note);
  }
  return text;
}

std::string key_and_value(const OptionEntry& option) {
  return concat(option.name, ": ", option.fallback().value_or("..."));
}

/// The options of plug-ins, equal ones together. The plug-in `chosen` is the default.
std::vector<Shared> options_of(const std::vector<PlugInRow>& rows, std::string_view chosen) {
  std::vector<Shared> result;
  for (const PlugInRow& row : rows) {
    for (const OptionEntry& option : row.options) {
      auto found = std::ranges::find_if(
          result, [&](const Shared& other) { return are_equal(*other.option, option); });
      if (found == result.end()) found = result.insert(result.end(), {&option, {}});
      found->owners.push_back(row.name);
      found->is_common = found->owners.size() == rows.size();
      found->is_default |= row.name == chosen || found->is_common;
    }
  }
  std::ranges::stable_partition(result, &Shared::is_default);
  return result;
}

/// An option of a section, and where it names a plug-in, the plug-ins.
void print_option(std::ostream& out, const OptionEntry& option,
                  const std::vector<PlugInRow>& rows) {
  const auto* const choice = std::get_if<ChoiceRule>(&option.rule);
  const bool names_rows = !rows.empty() && choice != nullptr && choice->names != nullptr;
  print_line(out, concat("  ", key_and_value(option)),
             names_rows ? std::string(option.meaning) : explained(option));
  if (!names_rows) return;
  const std::string margin(kCommentColumn, ' ');
  for (const PlugInRow& row : rows) {
    out << margin;
    print_comment(out, concat("- ", row.name, ": ", row.summary), kCommentColumn, margin + "#  ");
  }
}

/// A section that is left out unless it is wanted, as a comment.
void print_example(std::ostream& out, std::string_view name, std::string_view summary,
                   std::string_view example, std::span<const OptionEntry> options) {
  out << "  ";
  print_comment(out, concat(summary, ":"), 2, "  #");
  out << "  # " << name << ": " << example << '\n';
  for (const OptionEntry& option : options) {
    print_line(out, concat("  #   ", key_and_value(option)), explained(option));
  }
}

void print_section(std::ostream& out, const SectionEntry& section) {
  out << '\n';
  print_comment(out, std::string(section.summary), 0, "#");
  out << section.name << ":\n";
  std::vector<Shared> of_plug_ins;
  for (const OptionEntry& option : section.options) {
    const auto rows = rows_named_by(concat(section.name, ".", option.name));
    print_option(out, option, rows);
    std::ranges::copy(options_of(rows, option.fallback().value_or("")),
                      std::back_inserter(of_plug_ins));
  }
  for (const Shared& shared : of_plug_ins) {
    const std::string owners = shared.is_common ? "" : join(shared.owners, ", ") + ": ";
    print_line(out, concat(shared.is_default ? "  " : "  # ", key_and_value(*shared.option)),
               owners + explained(*shared.option));
  }
}

}  // namespace

void print_reference(std::ostream& out) {
  print_comment(out, std::string(kHead), 0, "#");
  out << "#\n";
  print_comment(out, std::string(kTail), 0, "#");
  for (const SectionEntry& section : section_table()) {
    if (section.example.empty()) {
      print_section(out, section);
    } else {
      print_example(out, section.name.substr(section.name.find('.') + 1), section.summary,
                    section.example, section.options);
    }
    if (section.name != "topology") continue;
    for (const PlugInRow& row : wrapper_rows()) {
      print_example(out, row.name, concat("in place of name: ", row.summary), row.example,
                    row.options);
    }
  }
}

}  // namespace gossamer::apps
