// Rows that consist of a block for each rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace rdmaccl {

// Where each rank's block is, in elements as the library counts them.
struct Blocks {
  std::vector<size_t> counts;
  std::vector<size_t> displacements;

  // Blocks of so many elements, of which each counts as `each`, one after another.
  static Blocks in_a_row(const std::vector<size_t>& lengths, size_t each);
  // A tensor's blocks by the lengths of its first dimension; even ones if there are none.
  static Blocks of_splits(const at::Tensor& tensor, const std::vector<int64_t>& splits, int ranks, size_t each);
};

}  // namespace rdmaccl
