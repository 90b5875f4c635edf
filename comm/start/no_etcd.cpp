// Stands in for etcd_store.cpp in builds without libcurl.

#include "base/error.hpp"
#include "comm/start/etcd_store.hpp"

namespace gossamer {

std::shared_ptr<Store> open_etcd_store(const std::vector<std::string>& /*addresses*/,
                                       std::chrono::milliseconds /*patience*/,
                                       const std::function<void()>& /*while_waiting*/) {
  throw ConfigError(
      "the ranks shall meet in etcd, and this gossamer was built without libcurl, as the wheels "
      "are, allowed: HOST:PORT or file:FOLDER; or a build from source where libcurl4-openssl-dev "
      "is installed");
}

void remove_from_etcd(const std::vector<std::string>& /*addresses*/, const std::string& /*run*/,
                      std::chrono::milliseconds /*patience*/) {
  // open_etcd_store() has put nothing there.
}

}  // namespace gossamer
