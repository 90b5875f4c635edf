#include "core/plug_ins.hpp"

#include <utility>

namespace gossamer {

Options PlugIns::options(YamlNode root) const {
  Options options(std::move(root));
  options.take_along(algorithms);
  options.take_along(topologies);
  options.take_along(optimizers);
  options.take_along(codecs);
  return options;
}

}  // namespace gossamer
