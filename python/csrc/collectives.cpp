// Collectives in which every tensor of a call is alone: one row in, one row out.
#include "blocks.hpp"
#include "make.hpp"
#include "versions.hpp"

namespace rdmaccl {

using c10d::OpType;

namespace {

void require_same_type(const at::Tensor& one, const at::Tensor& other) {
  TORCH_CHECK_TYPE(
      one.scalar_type() == other.scalar_type(),
      "rdmaccl: tensors of types ", one.scalar_type(), " and ", other.scalar_type(), " in one call");
}

void require_times(const at::Tensor& longer, const at::Tensor& shorter, int times) {
  require_same_type(longer, shorter);
  TORCH_CHECK_VALUE(
      longer.numel() == shorter.numel() * times,
      "rdmaccl: tensors of ", longer.numel(), " and ", shorter.numel(), " elements; among ", times,
      " ranks one must have ", times, " times as many as the other");
}

void restore(const std::vector<Flat>& flats) {
  for (const auto& flat : flats) {
    flat.restore();
  }
}

const at::Tensor& first(const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(!tensors.empty(), "rdmaccl: an empty list of tensors");
  return tensors[0];
}

std::vector<Flat> flats(const std::vector<at::Tensor>& tensors, Flat (*make)(const at::Tensor&)) {
  std::vector<Flat> made;
  made.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    made.push_back(make(tensor));
  }
  return made;
}

}  // namespace

ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const auto call = begin(OpType::BROADCAST, "rdmaccl:broadcast", opts, place(only(tensors)));
  const auto flat = Flat::in_place(only(tensors));
  const auto elements = moved(tensors[0].scalar_type());
  const auto count = elements.in(tensors[0]);
  const auto root = static_cast<int>(opts.rootRank);
  return make(
      call, tensors, tensors,
      [=, comm = call.comm()](cclStream_t stream) {
        return cclBroadcast(flat.data(), flat.data(), count, elements.type, root, comm, stream);
      },
      [flat] { flat.restore(); });
}

ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  if (only(tensors).layout() == at::kSparse) {
    return allreduce_sparse(tensors, opts);
  }
  const auto call = begin(OpType::ALLREDUCE, "rdmaccl:all_reduce", opts, place(tensors[0]));
  const auto flat = Flat::in_place(tensors[0]);
  const auto comm = call.comm();
  const Operator op(opts.reduceOp, tensors[0].scalar_type(), comm);
  const auto elements = op.elements();
  const auto count = elements.in(tensors[0]);
  return make(
      call, tensors, tensors,
      [=, &flat, op = op.get()](cclStream_t stream) {
        return cclAllReduce(flat.data(), flat.data(), count, elements.type, op, comm, stream);
      },
      [flat] { flat.restore(); });
}

ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::allreduce_coalesced(
    Tensors& tensors,
    const c10d::AllreduceCoalescedOptions& opts) {
  const auto call = begin(OpType::ALLREDUCE_COALESCED, "rdmaccl:all_reduce", opts, place(first(tensors)));
  const auto rows = flats(tensors, Flat::in_place);
  const auto comm = call.comm();
  std::vector<std::unique_ptr<Operator>> ops;
  for (const auto& tensor : tensors) {
    ops.push_back(std::make_unique<Operator>(opts.reduceOp, tensor.scalar_type(), comm));
  }
  return make(
      call, tensors, tensors,
      [&, comm](cclStream_t stream) {
        return together(rows.size(), [&](size_t i) {
          const auto elements = ops[i]->elements();
          return cclAllReduce(
              rows[i].data(), rows[i].data(), elements.in(tensors[i]), elements.type, ops[i]->get(), comm, stream);
        });
      },
      [rows] { restore(rows); });
}

ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const bool is_root = opts.rootRank == rank_;
  const auto call = begin(OpType::REDUCE, "rdmaccl:reduce", opts, place(only(tensors)));
  const auto flat = is_root ? Flat::in_place(only(tensors)) : Flat::input(only(tensors));
  const auto comm = call.comm();
  const Operator op(opts.reduceOp, tensors[0].scalar_type(), comm);
  const auto elements = op.elements();
  const auto count = elements.in(tensors[0]);
  const auto root = static_cast<int>(opts.rootRank);
  return make(
      call, tensors, tensors,
      [=, op = op.get()](cclStream_t stream) {
        void* into = is_root ? flat.data() : nullptr;
        return cclReduce(flat.data(), into, count, elements.type, op, root, comm, stream);
      },
      [flat] { flat.restore(); });
}

ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::_allgather_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::AllgatherOptions& opts) {
  require_times(output, input, size_);
  const auto call = begin(OpType::_ALLGATHER_BASE, "rdmaccl:_all_gather_base", opts, place(input));
  const auto from = Flat::input(input);
  const auto into = Flat::output(output);
  const auto elements = moved(input.scalar_type());
  const auto count = elements.in(input);
  return make(
      call, {input}, Tensors{output},
      [=, comm = call.comm()](cclStream_t stream) {
        return cclAllGather(from.data(), into.data(), count, elements.type, comm, stream);
      },
      [from, into] { into.restore(); });
}

ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::allgather_into_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "rdmaccl: lists of different lengths");
  const auto call =
      begin(all_gathers_into_tensors(), "rdmaccl:all_gather_into_tensor_coalesced", opts, place(first(inputs)));
  const auto from = flats(inputs, Flat::input);
  const auto into = flats(outputs, Flat::output);
  for (size_t i = 0; i < inputs.size(); ++i) {
    require_times(outputs[i], inputs[i], size_);
  }
  return make(
      call, inputs, outputs,
      [&, comm = call.comm()](cclStream_t stream) {
        return together(from.size(), [&](size_t i) {
          const auto elements = moved(inputs[i].scalar_type());
          return cclAllGather(from[i].data(), into[i].data(), elements.in(inputs[i]), elements.type, comm, stream);
        });
      },
      [from, into] { restore(into); });
}

ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::_reduce_scatter_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::ReduceScatterOptions& opts) {
  require_times(input, output, size_);
  const auto call = begin(OpType::_REDUCE_SCATTER_BASE, "rdmaccl:_reduce_scatter_base", opts, place(input));
  const auto from = Flat::input(input);
  const auto into = Flat::output(output);
  const auto comm = call.comm();
  const Operator op(opts.reduceOp, input.scalar_type(), comm);
  const auto elements = op.elements();
  const auto count = elements.in(output);
  return make(
      call, {input}, Tensors{output},
      [=, op = op.get()](cclStream_t stream) {
        return cclReduceScatter(from.data(), into.data(), count, elements.type, op, comm, stream);
      },
      [from, into] { into.restore(); });
}

ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::reduce_scatter_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::ReduceScatterOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "rdmaccl: lists of different lengths");
  const auto call =
      begin(reduce_scatters_of_tensors(), "rdmaccl:reduce_scatter_tensor_coalesced", opts, place(first(inputs)));
  const auto from = flats(inputs, Flat::input);
  const auto into = flats(outputs, Flat::output);
  const auto comm = call.comm();
  std::vector<std::unique_ptr<Operator>> ops;
  for (size_t i = 0; i < inputs.size(); ++i) {
    require_times(inputs[i], outputs[i], size_);
    ops.push_back(std::make_unique<Operator>(opts.reduceOp, inputs[i].scalar_type(), comm));
  }
  return make(
      call, inputs, outputs,
      [&, comm](cclStream_t stream) {
        return together(from.size(), [&](size_t i) {
          const auto elements = ops[i]->elements();
          return cclReduceScatter(
              from[i].data(), into[i].data(), elements.in(outputs[i]), elements.type, ops[i]->get(), comm, stream);
        });
      },
      [from, into] { restore(into); });
}

ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::gather_into_tensor(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::GatherOptions& opts) {
  const bool is_root = opts.rootRank == rank_;
  if (is_root) {
    require_times(output, input, size_);
  }
  const auto call = begin(OpType::GATHER, "rdmaccl:gather", opts, place(input));
  const auto from = Flat::input(input);
  const auto into = is_root ? Flat::output(output) : from;
  const auto elements = moved(input.scalar_type());
  const auto count = elements.in(input);
  const auto root = static_cast<int>(opts.rootRank);
  return make(
      call, {input}, is_root ? Tensors{output} : Tensors{},
      [=, comm = call.comm()](cclStream_t stream) {
        void* room = is_root ? into.data() : nullptr;
        return cclGather(from.data(), room, count, elements.type, root, comm, stream);
      },
      [from, into] { into.restore(); });
}

ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits,
    const c10d::AllToAllOptions& opts) {
  require_same_type(output, input);
  const auto call = begin(OpType::ALLTOALL_BASE, "rdmaccl:all_to_all", opts, place(input));
  const auto from = Flat::input(input);
  const auto into = Flat::output(output);
  const auto elements = moved(input.scalar_type());
  const auto comm = call.comm();
  const auto after = [from, into] { into.restore(); };
  if (output_splits.empty() && input_splits.empty()) {
    require_times(input, output, 1);
    TORCH_CHECK_VALUE(
        input.dim() > 0 && input.size(0) % size_ == 0,
        "rdmaccl: a tensor's first dimension cannot be split evenly among ", size_, " ranks");
    const auto count = elements.in(input) / static_cast<size_t>(size_);
    return make(call, {input}, Tensors{output}, [=](cclStream_t stream) {
      return cclAlltoAll(from.data(), into.data(), count, elements.type, comm, stream);
    }, after);
  }
  const auto sent = Blocks::of_splits(input, input_splits, size_, elements.each);
  const auto received = Blocks::of_splits(output, output_splits, size_, elements.each);
  return make(call, {input}, Tensors{output}, [&](cclStream_t stream) {
    return cclAlltoAllv(
        from.data(), sent.counts.data(), sent.displacements.data(), into.data(), received.counts.data(),
        received.displacements.data(), elements.type, comm, stream);
  }, after);
}

ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::barrier(const c10d::BarrierOptions& opts) {
  const auto call = begin(OpType::BARRIER, "rdmaccl:barrier", opts, barrier_place(opts));
  return make(
      call, {}, Tensors{},
      [comm = call.comm()](cclStream_t stream) { return cclBarrier(comm, stream); }, [] {});
}

}  // namespace rdmaccl
