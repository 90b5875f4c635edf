// gossamer rendezvous HOST:PORT

#include <chrono>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "apps/commands/commands.hpp"
#include "apps/train/stop_signals.hpp"
#include "base/error.hpp"
#include "base/file_limit.hpp"
#include "base/text.hpp"
#include "comm/start/start.hpp"
#include "core/torch/c10d_store.hpp"

namespace gossamer::apps {
namespace {

void serve(const std::string& text) {
  const StopSignals stop;
  // Each rank keeps a connection.
  raise_file_limit();
  std::optional<StoreSocket> socket = listen_at(read_place(text, "command line", "place"));
  if (!socket) {
    throw CommError({.label = {.what = "start"}},
                    concat("no store can be served at ", visible_line(text),
                           ": another program listens there, or the host is another machine"));
  }
  const std::string place = to_string(socket->place);
  const std::shared_ptr<Store> store = serve_tcp_store(std::move(*socket));
  std::cout << "runs meet at " << place << " as long as this program runs: --rendezvous " << place
            << ", --join " << place << std::endl;
  while (stop.caught() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

}  // namespace

void add_rendezvous_command(CLI::App& program) {
  auto place = std::make_shared<std::string>();
  CLI::App* command = program.add_subcommand(
      "rendezvous", "Serve the place where ranks meet, for runs that go on when ranks die");
  command->add_option("place", *place, "The address of this machine that all ranks reach")
      ->type_name("HOST:PORT")
      ->required();
  command->footer(
      "Ends at SIGINT or SIGTERM. It keeps what runs need in memory: a run that loses ranks while\n"
      "this program is gone ends.\n"
      "Example:\n"
      "  gossamer rendezvous host1:29500");
  command->callback([place] { serve(*place); });
}

}  // namespace gossamer::apps
