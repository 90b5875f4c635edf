#pragma once
// The large headers that most files of core/torch and apps use, compiled once: such a file then
// takes a third of the time. No file includes this one; CMake gives it to the compiler
// (gossamer_precompile() in GossamerTarget.cmake).

#include <ATen/Parallel.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
