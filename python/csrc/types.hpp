// PyTorch's element types and reductions in the library's terms.
#pragma once

#include <ATen/core/Tensor.h>
#include <ccl.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace rdmaccl {

// How the elements of a tensor travel: as so many of a type that the library has.
struct Elements {
  cclDataType_t type;
  // How many of these one element of the tensor is: a complex number is two reals.
  size_t each;

  size_t in(const at::Tensor& tensor) const {
    return static_cast<size_t>(tensor.numel()) * each;
  }
};

// For calls that move data: any type; as bytes if the library does not have it.
Elements moved(at::ScalarType type);

// An operator for one call, freed at its end if it was made for it. Calls that were issued with it are not touched by that.
class Operator {
 public:
  // Raises where PyTorch's type does not have this reduction.
  Operator(const c10d::ReduceOp& reduce, at::ScalarType type, cclComm_t comm);
  ~Operator();
  Operator(const Operator&) = delete;
  Operator& operator=(const Operator&) = delete;

  cclRedOp_t get() const {
    return op_;
  }
  Elements elements() const {
    return elements_;
  }

 private:
  Elements elements_;
  cclRedOp_t op_;
  // Not NULL: the operator is ours, and made on it.
  cclComm_t owner_ = nullptr;
};

}  // namespace rdmaccl
