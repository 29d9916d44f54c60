#include "layout.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

namespace rdmaccl {

namespace {

// Whether its bytes, read in a row, are its values.
bool is_row(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor row_of(const at::Tensor& tensor) {
  if (is_row(tensor)) {
    return tensor;
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return tensor.resolve_conj().resolve_neg().contiguous();
}

at::Tensor room_for(const at::Tensor& tensor) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
}

// Whether each begins where the one before it ends. What lies so by chance, in allocations of their own, is not one run of memory for a
// device.
bool are_row(const std::vector<at::Tensor>& tensors) {
  const auto* end = static_cast<const char*>(tensors[0].data_ptr());
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    const auto* begin = static_cast<const char*>(tensor.data_ptr());
    const bool follows =
        is_row(tensor) && (tensor.numel() == 0 || (begin == end && tensor.storage().is_alias_of(tensors[0].storage())));
    end += tensor.nbytes();
    return follows;
  });
}

}  // namespace

at::Device place(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), "rdmaccl: an undefined tensor");
  TORCH_CHECK_VALUE(
      tensor.is_cpu() || tensor.is_cuda(),
      "rdmaccl: a tensor on ", tensor.device(), "; this backend works on CPU and CUDA tensors");
  TORCH_CHECK_VALUE(
      tensor.layout() == at::kStrided, "rdmaccl: a tensor of layout ", tensor.layout(), "; this call takes dense tensors");
  return tensor.device();
}

void refuse_elsewhere(at::Device device, const at::Tensor& tensor) {
  C10_THROW_ERROR(ValueError, c10::str("rdmaccl: tensors on ", device, " and on ", tensor.device(), " in one call"));
}

void overwrite(const at::Tensor& to, const at::Tensor& from) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  to.copy_(from);
}

at::Tensor host_room_for(const at::Tensor& tensor) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type()).device(at::kCPU));
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "rdmaccl: ", tensors.size(), " tensors; this call takes one");
  return tensors[0];
}

void* address(const at::Tensor& tensor) {
  static char nothing = 0;
  void* data = tensor.data_ptr();
  return data != nullptr ? data : &nothing;
}

Flat Flat::input(const at::Tensor& tensor) {
  place(tensor);
  return Flat(row_of(tensor));
}

Flat Flat::output(const at::Tensor& tensor) {
  place(tensor);
  return is_row(tensor) ? Flat(tensor) : Flat(room_for(tensor), tensor);
}

Flat Flat::in_place(const at::Tensor& tensor) {
  place(tensor);
  return is_row(tensor) ? Flat(tensor) : Flat(row_of(tensor), tensor);
}

void Flat::restore() const {
  if (target_.defined()) {
    overwrite(target_, row_);
  }
}

FlatList::FlatList(const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(!tensors.empty(), "rdmaccl: an empty list of tensors");
  counts_.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    place(tensor);
    TORCH_CHECK_TYPE(
        tensor.scalar_type() == tensors[0].scalar_type(),
        "rdmaccl: tensors of types ", tensors[0].scalar_type(), " and ", tensor.scalar_type(), " in one list");
    counts_.push_back(static_cast<size_t>(tensor.numel()));
  }
  if (are_row(tensors)) {
    owners_ = tensors;
    data_ = address(tensors[0]);
    return;
  }
  int64_t total = 0;
  for (const auto count : counts_) {
    total += static_cast<int64_t>(count);
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  owners_ = {at::empty({total}, tensors[0].options().memory_format(at::MemoryFormat::Contiguous))};
  data_ = address(owners_[0]);
  targets_ = tensors;
}

FlatList FlatList::inputs(const std::vector<at::Tensor>& tensors) {
  FlatList list(tensors);
  int64_t at = 0;
  for (const auto& tensor : list.targets_) {
    overwrite(list.owners_[0].narrow(0, at, tensor.numel()).view(tensor.sizes()), tensor);
    at += tensor.numel();
  }
  list.targets_.clear();
  return list;
}

FlatList FlatList::outputs(const std::vector<at::Tensor>& tensors) {
  return FlatList(tensors);
}

bool FlatList::is_even() const {
  return std::all_of(counts_.begin(), counts_.end(), [&](size_t count) { return count == counts_[0]; });
}

void FlatList::restore() const {
  int64_t at = 0;
  for (const auto& tensor : targets_) {
    overwrite(tensor, owners_[0].narrow(0, at, tensor.numel()).view(tensor.sizes()));
    at += tensor.numel();
  }
}

}  // namespace rdmaccl
