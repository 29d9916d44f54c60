#include "blocks.hpp"

namespace rdmaccl {

Blocks Blocks::in_a_row(const std::vector<size_t>& lengths, size_t each) {
  Blocks blocks;
  size_t next = 0;
  for (const auto length : lengths) {
    blocks.counts.push_back(length * each);
    blocks.displacements.push_back(next);
    next += length * each;
  }
  return blocks;
}

Blocks Blocks::of_splits(const at::Tensor& tensor, const std::vector<int64_t>& splits, int ranks, size_t each) {
  TORCH_CHECK_VALUE(tensor.dim() > 0, "rdmaccl: a tensor without dimensions cannot be split");
  const int64_t rows = tensor.size(0);
  const int64_t row = rows == 0 ? 0 : tensor.numel() / rows;
  std::vector<size_t> lengths;
  if (splits.empty()) {
    TORCH_CHECK_VALUE(
        rows % ranks == 0, "rdmaccl: a tensor's first dimension of ", rows, " cannot be split evenly among ", ranks, " ranks");
    lengths.assign(static_cast<size_t>(ranks), static_cast<size_t>(rows / ranks * row));
    return in_a_row(lengths, each);
  }
  TORCH_CHECK_VALUE(
      splits.size() == static_cast<size_t>(ranks),
      "rdmaccl: ", splits.size(), " split sizes for ", ranks, " ranks");
  int64_t sum = 0;
  for (const auto split : splits) {
    TORCH_CHECK_VALUE(split >= 0, "rdmaccl: a split size of ", split);
    lengths.push_back(static_cast<size_t>(split * row));
    sum += split;
  }
  TORCH_CHECK_VALUE(
      sum == rows, "rdmaccl: split sizes of ", sum, " in all for a tensor whose first dimension is ", rows);
  return in_a_row(lengths, each);
}

}  // namespace rdmaccl
