// gossamer secret [-o FILE]

#include "comm/start/secret.hpp"

#include <iostream>
#include <memory>
#include <string>

#include "apps/commands/commands.hpp"
#include "base/text.hpp"

namespace gossamer::apps {

void add_secret_command(CLI::App& program) {
  auto path = std::make_shared<std::string>();
  CLI::App* command =
      program.add_subcommand("secret", "Print a new secret for runs over a network");
  command
      ->add_option("-o,--output", *path,
                   "Write the secret into this new file, which only you may read")
      ->type_name("FILE");
  command->footer(
      "Examples:\n"
      "  gossamer secret -o run.secret\n"
      "  export GOSSAMER_SECRET=$(gossamer secret)");
  command->callback([path] {
    const std::string secret = fresh_secret();
    if (path->empty()) {
      std::cout << secret << '\n';
      return;
    }
    write_secret_file(*path, secret);
    std::cout
        << visible_line(*path)
        << ": copy it to all hosts of a run, and set GOSSAMER_SECRET_FILE to its path there\n";
  });
}

}  // namespace gossamer::apps
