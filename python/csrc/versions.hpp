// Names that torch has had since 2.15, and what older ones say in their place.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace rdmaccl {

template <typename Type = c10d::OpType>
constexpr Type all_gathers_into_tensors() {
  if constexpr (requires { Type::ALLGATHER_INTO_TENSOR_COALESCED; }) {
    return Type::ALLGATHER_INTO_TENSOR_COALESCED;
  } else {
    return Type::COALESCED;
  }
}

template <typename Type = c10d::OpType>
constexpr Type reduce_scatters_of_tensors() {
  if constexpr (requires { Type::REDUCE_SCATTER_TENSOR_COALESCED; }) {
    return Type::REDUCE_SCATTER_TENSOR_COALESCED;
  } else {
    return Type::COALESCED;
  }
}

}  // namespace rdmaccl
