#pragma once
// etcd as a child of a test, at ports of its own of the loopback address.

#include "test/apps/folder.hpp"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/start/etcd_store.hpp"
#include "comm/start/store_socket.hpp"

namespace gossamer {

/// A cluster of one member. Keeps its data as long as the object lives. It ends with the thread
/// that has started it.
class EtcdServer {
 public:
  EtcdServer() { start(); }
  ~EtcdServer() { kill(); }
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  /// Why no test can have one; empty: it can.
  static std::string missing() {
    try {
      open_etcd_store({"http://127.0.0.1:1"}, {});
    } catch (const ConfigError& error) {
      const std::string text = error.what();
      if (text.find("built without libcurl") != std::string::npos) return text;
    }
    const char* const path = std::getenv("PATH");
    std::istringstream folders(path == nullptr ? "" : path);
    for (std::string folder; std::getline(folders, folder, ':');) {
      if (access((folder + "/etcd").c_str(), X_OK) == 0) return "";
    }
    return "etcd is not installed (Debian: etcd-server)";
  }

  [[nodiscard]] const std::string& address() const { return address_; }
  /// Where members talk to one another. It does not know the requests of clients.
  [[nodiscard]] const std::string& peer_address() const { return peer_address_; }
  [[nodiscard]] std::shared_ptr<Store> open() const {
    return open_etcd_store({address_}, std::chrono::seconds(60));
  }

  /// At once, as SIGKILL does it.
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

  /// After kill() with what it has known. Returns when it answers.
  void start() {
    const std::vector<std::string> arguments = {"etcd",
                                                "--data-dir",
                                                folder_.file("data"),
                                                "--listen-client-urls",
                                                address_,
                                                "--advertise-client-urls",
                                                address_,
                                                "--listen-peer-urls",
                                                peer_address_,
                                                "--initial-advertise-peer-urls",
                                                peer_address_,
                                                "--initial-cluster",
                                                "default=" + peer_address_};
    std::vector<char*> pointers;
    for (const std::string& argument : arguments) {
      pointers.push_back(const_cast<char*>(argument.c_str()));
    }
    pointers.push_back(nullptr);
    const std::string log = folder_.file("log");
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int file = open_log(log.c_str());
      dup2(file, STDOUT_FILENO);
      dup2(file, STDERR_FILENO);
      execvp(pointers.front(), pointers.data());
      _exit(127);
    }
    open()->set("etcd-server", "answers");
  }

 private:
  static int open_log(const char* path) {
    return ::open(path, O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0600);
  }

  static std::string free_address() {
    return concat("http://", to_string(listen_at({"127.0.0.1", 0}).value().place));
  }

  Folder folder_;
  std::string address_ = free_address();
  std::string peer_address_ = free_address();
  pid_t pid_ = 0;
};

}  // namespace gossamer
