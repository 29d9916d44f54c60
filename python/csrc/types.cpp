#include "types.hpp"

#include "errors.hpp"

#include <ATen/Functions.h>
#include <ATen/ops/full.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace rdmaccl {

namespace {

// The library's type of the same values, if it has one.
std::optional<cclDataType_t> same(at::ScalarType type) {
  switch (type) {
    case at::kChar:
      return cclInt8;
    case at::kByte:
      return cclUint8;
    case at::kShort:
      return cclInt16;
    case at::kUInt16:
      return cclUint16;
    case at::kInt:
      return cclInt32;
    case at::kUInt32:
      return cclUint32;
    case at::kLong:
      return cclInt64;
    case at::kUInt64:
      return cclUint64;
    case at::kHalf:
      return cclFloat16;
    case at::kFloat:
      return cclFloat32;
    case at::kDouble:
      return cclFloat64;
    case at::kBFloat16:
      return cclBfloat16;
    case at::kFloat8_e4m3fn:
      return cclFloat8e4m3;
    case at::kFloat8_e5m2:
      return cclFloat8e5m2;
    default:
      return std::nullopt;
  }
}

using Reduce = c10d::ReduceOp::RedOpType;

cclRedOp_t plain(Reduce reduce) {
  switch (reduce) {
    case Reduce::SUM:
      return cclSum;
    case Reduce::AVG:
      return cclAvg;
    case Reduce::PRODUCT:
      return cclProd;
    case Reduce::MIN:
      return cclMin;
    case Reduce::MAX:
      return cclMax;
    case Reduce::BAND:
      return cclBand;
    case Reduce::BOR:
      return cclBor;
    case Reduce::BXOR:
      return cclBxor;
    default:
      TORCH_CHECK_VALUE(false, "rdmaccl: this ReduceOp (number ", static_cast<int>(reduce), ") is no reduction");
  }
}

// Truth values are bytes of 0 and 1; sums and products stay among them as "or" and "and".
cclRedOp_t logical(Reduce reduce) {
  switch (reduce) {
    case Reduce::SUM:
    case Reduce::MAX:
    case Reduce::BOR:
      return cclMax;
    case Reduce::PRODUCT:
    case Reduce::MIN:
    case Reduce::BAND:
      return cclMin;
    case Reduce::BXOR:
      return cclBxor;
    default:
      TORCH_CHECK_TYPE(false, "rdmaccl: there is no mean of bool tensors; use SUM, PRODUCT, MIN, MAX, BAND, BOR or BXOR");
  }
}

Elements reduced(Reduce reduce, at::ScalarType type) {
  if (type == at::kBool) {
    return {cclUint8, 1};
  }
  if (c10::isComplexType(type)) {
    const bool by_parts = reduce == Reduce::SUM || reduce == Reduce::AVG || reduce == Reduce::PREMUL_SUM;
    TORCH_CHECK_VALUE(by_parts, "rdmaccl: complex tensors can be reduced by SUM, AVG and PREMUL_SUM only");
    const auto part = same(c10::toRealValueType(type));
    TORCH_CHECK_TYPE(part.has_value(), "rdmaccl: tensors of type ", type, " cannot be reduced");
    return {*part, 2};
  }
  const auto known = same(type);
  TORCH_CHECK_TYPE(known.has_value(), "rdmaccl: tensors of type ", type, " cannot be reduced, only moved");
  return {*known, 1};
}

cclRedOp_t pre_multiplied(const c10d::ReduceOp& reduce, at::ScalarType type, cclDataType_t as, cclComm_t comm) {
  const auto* supplement = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(reduce.supplement_.get());
  TORCH_CHECK_VALUE(supplement != nullptr, "rdmaccl: a PREMUL_SUM without its factor");
  const auto part = c10::isComplexType(type) ? c10::toRealValueType(type) : type;
  TORCH_CHECK_TYPE(part != at::kBool, "rdmaccl: there is no PREMUL_SUM of bool tensors");
  const auto options = at::TensorOptions().dtype(part);
  const at::Tensor factor = supplement->tensor_factor.defined()
      ? supplement->tensor_factor.to(at::kCPU, part).contiguous()
      : at::full({1}, supplement->double_factor, options);
  cclRedOp_t made{};
  check(
      cclRedOpCreatePreMulSum(&made, factor.data_ptr(), as, cclScalarHostImmediate, comm),
      "rdmaccl: making the operator PREMUL_SUM");
  return made;
}

}  // namespace

Elements moved(at::ScalarType type) {
  if (const auto known = same(type)) {
    return {*known, 1};
  }
  return {cclUint8, c10::elementSize(type)};
}

Operator::Operator(const c10d::ReduceOp& reduce, at::ScalarType type, cclComm_t comm)
    : elements_(reduced(reduce.op_, type)) {
  if (reduce.op_ == Reduce::PREMUL_SUM) [[unlikely]] {
    op_ = pre_multiplied(reduce, type, elements_.type, comm);
    owner_ = comm;
  } else {
    op_ = type == at::kBool ? logical(reduce.op_) : plain(reduce.op_);
  }
}

Operator::~Operator() {
  if (owner_ != nullptr) {
    cclRedOpDestroy(op_, owner_);
  }
}

}  // namespace rdmaccl
