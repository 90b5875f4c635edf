#pragma once
// A communicator that expects its callers to keep the memory of sums alive.

#include <utility>

#include <gtest/gtest.h>

#include "comm/forwarding_communicator.hpp"

namespace gossamer {

/// Expects that every sum keeps its memory alive, which a rank may have left before the sum ends.
class OwnedSums : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  Request all_reduce_sum(ConstBlock send, Block receive, OpContext context) override {
    EXPECT_NE(context.owner, nullptr) << to_string(context.label);
    return ForwardingCommunicator::all_reduce_sum(send, receive, std::move(context));
  }
};

}  // namespace gossamer
