#pragma once
// The options of the models, which their files read and their rows list.

#include "base/option.hpp"

namespace gossamer::apps {

namespace mlp {
inline constexpr IntegerOption kHidden{
    "hidden", "units of each hidden layer", {.fallback = 256, .min = 1, .max = 100'000}};
inline constexpr IntegerOption kLayers{
    "layers", "hidden layers", {.fallback = 2, .min = 0, .max = 1'000}};
inline constexpr std::array kOptions = option_list(kHidden, kLayers);
}  // namespace mlp

namespace cnn {
inline constexpr IntegerOption kWidth{
    "width", "channels of the first convolution", {.fallback = 16, .min = 1, .max = 10'000}};
inline constexpr std::array kOptions = option_list(kWidth);
}  // namespace cnn

namespace resnet20 {
inline constexpr IntegerOption kBlocks{
    "blocks", "residual blocks in each of three stages", {.fallback = 3, .min = 1, .max = 1'000}};
inline constexpr std::array kOptions = option_list(cnn::kWidth, kBlocks);
}  // namespace resnet20

namespace gpt {
inline constexpr ChoiceOption kSize{
    "size",
    "tiny (layers 2, d_model 64, heads 2; 0.1 million parameters), mini (4, 128, 4; 0.8), small "
    "(6, 192, 6; 2.7), base (6, 384, 6; 10.6), medium (8, 512, 8; 25) or 124m, which is GPT-2's "
    "and ties the output matrix to the embedding",
    {.words = {"tiny", "mini", "small", "base", "medium", "124m"}, .fallback = "base"}};
inline constexpr OptionalIntegerOption kLayers{
    "layers", "transformer layers", {{.min = 1, .max = 1'000}}, "those of size"};
inline constexpr OptionalIntegerOption kWidth{"d_model",
                                              "width of embeddings and of every layer's output",
                                              {{.min = 1, .max = 100'000}},
                                              "that of size"};
inline constexpr OptionalIntegerOption kHeads{
    "heads", "attention heads, a divisor of d_model", {{.min = 1, .max = 10'000}}, "those of size"};
inline constexpr std::array kOptions = option_list(kSize, kLayers, kWidth, kHeads);
}  // namespace gpt

namespace torchscript {
inline constexpr PathOption kPath{
    "path", "the file that torch.jit.save has written; it holds code, which is run"};
inline constexpr std::array kOptions = option_list(kPath);
}  // namespace torchscript

}  // namespace gossamer::apps
