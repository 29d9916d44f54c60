// All-reduce of sparse tensors: everybody gets everybody's entries and adds them up.
#include "process_group.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

namespace rdmaccl {

namespace {

// A template, for versions whose options do not say this; there, it is waited for.
template <class Opts>
void make_blocking(Opts& opts) {
  if constexpr (requires { opts.asyncOp; }) {
    opts.asyncOp = false;
  }
}

}  // namespace

ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::allreduce_sparse(
    Tensors& tensors,
    const c10d::AllreduceOptions& opts) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto& tensor = only(tensors);
  TORCH_CHECK_VALUE(
      tensor.layout() == at::kSparse && tensor.device().is_cpu(), "rdmaccl: allreduce_sparse takes sparse CPU tensors");
  TORCH_CHECK_VALUE(
      opts.reduceOp.op_ == c10d::ReduceOp::SUM, "rdmaccl: sparse tensors can be reduced by SUM only");
  // What a step needs is the result of the one before it, so the steps are made here, also if the call is asynchronous.
  c10d::AllgatherOptions step;
  make_blocking(step);
  step.timeout = opts.timeout;
  const auto gather = [&](at::Tensor own, const std::vector<int64_t>& lengths) {
    Lists gathered(1);
    for (const auto length : lengths) {
      auto sizes = own.sizes().vec();
      sizes[0] = length;
      gathered[0].push_back(at::empty(sizes, own.options()));
    }
    Tensors inputs{own};
    allgather(gathered, inputs, step)->wait();
    return at::cat(gathered[0]);
  };
  const auto mine = tensor.coalesce();
  const auto sizes = gather(at::full({1}, mine._nnz(), at::kLong), std::vector<int64_t>(static_cast<size_t>(size_), 1));
  const std::vector<int64_t> lengths(sizes.const_data_ptr<int64_t>(), sizes.const_data_ptr<int64_t>() + size_);
  // A row for each entry.
  const auto indices = gather(mine.indices().t().contiguous(), lengths);
  const auto values = gather(mine.values().contiguous(), lengths);
  const auto sum = at::_sparse_coo_tensor_unsafe(indices.t().contiguous(), values, tensor.sizes()).coalesce();
  tensors[0].copy_(sum);
  auto work = c10::make_intrusive<RdmacclWork>(
      rank_, Title{c10d::OpType::_ALLREDUCE_SPARSE, "rdmaccl:sparse_all_reduce"}, tensors, getSequenceNumberForGroup(),
      limit(opts.timeout));
  work->set_outputs(tensors);
  work->done();
  return remember(work);
}

}  // namespace rdmaccl
