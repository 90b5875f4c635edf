#pragma once
// The options of the data sets, which their files read and their rows list.

#include "base/option.hpp"

namespace gossamer::apps {

namespace glyphs {
inline constexpr IntegerOption kTrainSize{
    "train_size", "training images", {.fallback = 8192, .min = 1, .max = 10'000'000}};
inline constexpr IntegerOption kValSize{
    "val_size", "validation images", {.fallback = 2048, .min = 1, .max = 10'000'000}};
inline constexpr NumberOption kNoise{"noise",
                                     "standard deviation of the noise on every pixel",
                                     {.fallback = 0.25, .min = 0.0, .max = 1.0}};
inline constexpr std::array kOptions = option_list(kTrainSize, kValSize, kNoise);
}  // namespace glyphs

namespace idx {
inline constexpr PathOption kPath{"path",
                                  "a folder with images and labels files, or an images file"};
inline constexpr RangeOption kTrainRange{
    "train_range", "images that train", {}, "the training file, or the first 5/6 of the only one"};
inline constexpr RangeOption kValRange{
    "val_range", "images that validate", {}, "the t10k file, or the last 1/6 of the only one"};
inline constexpr std::array kOptions = option_list(kPath, kTrainRange, kValRange);
}  // namespace idx

namespace text {
inline constexpr PathOption kPath{"path", "the file"};
inline constexpr IntegerOption kContext{
    "context", "bytes in a window", {.fallback = 128, .min = 1, .max = 65'536}};
inline constexpr RangeOption kTrainRange{"train_range", "bytes that train", {}, "the first 9/10"};
inline constexpr RangeOption kValRange{"val_range", "bytes that validate", {}, "the last 1/10"};
inline constexpr std::array kOptions = option_list(kPath, kContext, kTrainRange, kValRange);
}  // namespace text

namespace cifar10 {
inline constexpr PathOption kPath{
    "path", "the folder of data_batch_1.bin to data_batch_5.bin and test_batch.bin"};
inline constexpr std::array kOptions = option_list(kPath);
}  // namespace cifar10

namespace tokens {
inline constexpr PathOption kPath{
    "path",
    "a folder with .bin files whose names contain train or val, or one file, whose last tenth "
    "validates"};
inline constexpr IntegerOption kContext{
    "context", "tokens in a window", {.fallback = 128, .min = 1, .max = 65'536}};
inline constexpr IntegerOption kVocabSize{
    "vocab_size", "number of different tokens", {.fallback = 50'257, .min = 1, .max = 10'000'000}};
inline constexpr std::array kOptions = option_list(kPath, kContext, kVocabSize);
}  // namespace tokens

namespace arrays {
inline constexpr PathOption kPath{
    "path",
    "a folder with train_inputs.npy, train_targets.npy, val_inputs.npy and val_targets.npy, or a "
    "safetensors file with tensors of these names; without the last two the last tenth validates"};
inline constexpr OptionalIntegerOption kNumClasses{"num_classes",
                                                   "number of classes",
                                                   {{.min = 1, .max = 10'000'000}},
                                                   "the largest class of the targets and one more"};
inline constexpr std::array kOptions = option_list(kPath, kNumClasses);
}  // namespace arrays

}  // namespace gossamer::apps
