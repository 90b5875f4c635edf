#pragma once
// Stores of LibTorch (c10d) in which the ranks of a run meet: a server of TCP and its clients, and
// a file in a folder that all machines share. PyTorch's torchrun serves the same kind of store.
//
// Protocol, thread safety: as Store's. The server answers in a thread of its own as long as the
// object that serve_tcp_store() returns exists. Errors: CommError, with the place of the store and
// with what to check.

#include <chrono>
#include <memory>
#include <string>

#include "base/file_lock.hpp"
#include "comm/start/store_socket.hpp"
#include "comm/store.hpp"

namespace gossamer {

/// Serves a store at `socket`, and is its first client.
std::shared_ptr<Store> serve_tcp_store(StoreSocket socket);

/// A client of the store at `place`. Waits up to `limit` for a process that serves it. After a call
/// that has failed, the next call makes a new connection, because the store may be back.
std::shared_ptr<Store> connect_tcp_store(const StorePlace& place, std::chrono::milliseconds limit);

/// A store in the file `path`, which stays when the store goes. The file's folder must exist, and
/// its file system must have locks.
std::shared_ptr<Store> open_file_store(const std::string& path,
                                       const LockFunction& lock = system_lock());

}  // namespace gossamer
