// Tensors as the plain runs of memory that the library works on.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace rdmaccl {

// Where a tensor is. Raises unless the library can work on such a tensor there.
at::Device place(const at::Tensor& tensor);

// Raises unless all tensors of a call are where it is made.
[[noreturn]] void refuse_elsewhere(at::Device device, const at::Tensor& tensor);

inline void require_on(at::Device device, const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) {
    if (tensor.device() != device) [[unlikely]] {
      refuse_elsewhere(device, tensor);
    }
  }
}

inline void require_on(at::Device device, const std::vector<std::vector<at::Tensor>>& lists) {
  for (const auto& list : lists) {
    require_on(device, list);
  }
}

// The tensor of a call that takes one.
const at::Tensor& only(const std::vector<at::Tensor>& tensors);

// Where its elements begin; for an empty tensor an address all the same, since the library refuses NULL.
void* address(const at::Tensor& tensor);

// A copy between buffers of a call, which is nothing that is differentiated, nor a change of the leaf that it fills.
void overwrite(const at::Tensor& to, const at::Tensor& from);

// Host memory for as many elements, in a row.
at::Tensor host_room_for(const at::Tensor& tensor);

// One tensor's elements in a row: where it has them, or in a copy.
class Flat {
 public:
  // For reading.
  static Flat input(const at::Tensor& tensor);
  // For writing; `restore` puts what was written into the tensor.
  static Flat output(const at::Tensor& tensor);
  // For both.
  static Flat in_place(const at::Tensor& tensor);

  void* data() const {
    return address(row_);
  }
  const at::Tensor& row() const {
    return row_;
  }
  // Whether `restore` has something to do.
  bool is_copy() const {
    return target_.defined();
  }
  void restore() const;

 private:
  explicit Flat(at::Tensor row, at::Tensor target = {}) : row_(std::move(row)), target_(std::move(target)) {}

  at::Tensor row_;
  at::Tensor target_;
};

// The elements of several tensors of one type in a row, one tensor after another: where they lie so already (chunks of one
// tensor), or in a copy.
class FlatList {
 public:
  static FlatList inputs(const std::vector<at::Tensor>& tensors);
  static FlatList outputs(const std::vector<at::Tensor>& tensors);
  // No tensors: for ranks that have no part in one side of a call.
  FlatList() = default;

  void* data() const {
    return data_;
  }
  // How many elements each tensor has.
  const std::vector<size_t>& counts() const {
    return counts_;
  }
  // Whether all are equally long.
  bool is_even() const;
  bool is_copy() const {
    return !targets_.empty();
  }
  void restore() const;

 private:
  explicit FlatList(const std::vector<at::Tensor>& tensors);

  // What keeps the memory: the tensors, or the row that has their copies.
  std::vector<at::Tensor> owners_;
  std::vector<at::Tensor> targets_;
  std::vector<size_t> counts_;
  void* data_ = nullptr;
};

}  // namespace rdmaccl
