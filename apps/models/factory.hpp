#pragma once
// Helpers that the files of the models share.

#include <memory>
#include <string_view>
#include <utility>

#include "apps/models/models.hpp"

namespace gossamer::apps {

template <class Net, class ModelOptions>
class FactoryOf : public ModelFactory {
 public:
  explicit FactoryOf(ModelOptions options) : options_(std::move(options)) {}
  [[nodiscard]] std::shared_ptr<Model> make(const SampleShape& shape) const override {
    return std::make_shared<Net>(shape, options_);
  }

 private:
  ModelOptions options_;
};

/// A factory that makes `Net(shape, options)`.
template <class Net, class ModelOptions>
std::unique_ptr<const ModelFactory> make_factory(ModelOptions options) {
  return std::make_unique<FactoryOf<Net, ModelOptions>>(std::move(options));
}

/// Returns `shape`. Throws ConfigError if halving the image twice leaves no pixel.
const SampleShape& need_two_halvings(const SampleShape& shape, std::string_view model);

}  // namespace gossamer::apps
