// Collectives with a list of tensors, one for each rank, on one side.
#include "blocks.hpp"
#include "make.hpp"

namespace rdmaccl {

using c10d::OpType;

namespace {

const std::vector<at::Tensor>& only(const std::vector<std::vector<at::Tensor>>& lists, int ranks) {
  TORCH_CHECK_VALUE(lists.size() == 1, "rdmaccl: ", lists.size(), " lists of tensors; this call takes one");
  TORCH_CHECK_VALUE(
      lists[0].size() == static_cast<size_t>(ranks),
      "rdmaccl: a list of ", lists[0].size(), " tensors for ", ranks, " ranks");
  return lists[0];
}

// This rank's block and this rank's tensor are equally long and of one type.
void require_fit(const std::vector<at::Tensor>& list, const at::Tensor& own, int rank) {
  const auto& block = list[static_cast<size_t>(rank)];
  TORCH_CHECK_TYPE(
      block.scalar_type() == own.scalar_type(),
      "rdmaccl: tensors of types ", block.scalar_type(), " and ", own.scalar_type(), " in one call");
  TORCH_CHECK_VALUE(
      block.numel() == own.numel(),
      "rdmaccl: rank ", rank, "'s tensor has ", own.numel(), " elements, but its place in the list has ", block.numel());
}

}  // namespace

ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::allgather(
    Lists& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& opts) {
  require_fit(only(outputs, size_), only(inputs), rank_);
  const auto call = begin(OpType::ALLGATHER, "rdmaccl:all_gather", opts, place(inputs[0]));
  const auto from = Flat::input(inputs[0]);
  const auto into = FlatList::outputs(outputs[0]);
  const auto elements = moved(inputs[0].scalar_type());
  const auto count = elements.in(inputs[0]);
  const auto blocks = Blocks::in_a_row(into.counts(), elements.each);
  return make(
      call, inputs, outputs,
      [&, comm = call.comm()](cclStream_t stream) {
        return into.is_even()
            ? cclAllGather(from.data(), into.data(), count, elements.type, comm, stream)
            : cclAllGatherV(
                  from.data(), count, into.data(), blocks.counts.data(), blocks.displacements.data(), elements.type,
                  comm, stream);
      },
      [from, into] { into.restore(); });
}

ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::allgather_coalesced(
    Lists& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& opts) {
  // A list for each rank here, with a tensor for each input.
  TORCH_CHECK_VALUE(
      outputs.size() == static_cast<size_t>(size_), "rdmaccl: ", outputs.size(), " lists of tensors for ", size_, " ranks");
  TORCH_CHECK_VALUE(!inputs.empty(), "rdmaccl: an empty list of tensors");
  const auto call = begin(OpType::ALLGATHER_COALESCED, "rdmaccl:all_gather", opts, place(inputs[0]));
  std::vector<Flat> from;
  std::vector<FlatList> into;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors list;
    for (const auto& of_rank : outputs) {
      TORCH_CHECK_VALUE(of_rank.size() == inputs.size(), "rdmaccl: lists of different lengths");
      list.push_back(of_rank[i]);
    }
    require_fit(list, inputs[i], rank_);
    from.push_back(Flat::input(inputs[i]));
    into.push_back(FlatList::outputs(list));
    TORCH_CHECK_VALUE(into[i].is_even(), "rdmaccl: allgather_coalesced with tensors of different lengths");
  }
  return make(
      call, inputs, outputs,
      [&, comm = call.comm()](cclStream_t stream) {
        return together(inputs.size(), [&](size_t i) {
          const auto elements = moved(inputs[i].scalar_type());
          return cclAllGather(from[i].data(), into[i].data(), elements.in(inputs[i]), elements.type, comm, stream);
        });
      },
      [from, into] {
        for (const auto& list : into) {
          list.restore();
        }
      });
}

ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::gather(
    Lists& outputs,
    Tensors& inputs,
    const c10d::GatherOptions& opts) {
  const bool is_root = opts.rootRank == rank_;
  const auto root = static_cast<int>(opts.rootRank);
  const auto call = begin(OpType::GATHER, "rdmaccl:gather", opts, place(only(inputs)));
  const auto from = Flat::input(only(inputs));
  if (is_root) {
    require_fit(only(outputs, size_), inputs[0], rank_);
  } else {
    TORCH_CHECK_VALUE(outputs.empty(), "rdmaccl: gather gives its result to the root only, and takes no list elsewhere");
  }
  const auto into = is_root ? FlatList::outputs(outputs[0]) : FlatList();
  const auto elements = moved(inputs[0].scalar_type());
  const auto count = elements.in(inputs[0]);
  const auto blocks = Blocks::in_a_row(into.counts(), elements.each);
  return make(
      call, inputs, outputs,
      [&, comm = call.comm()](cclStream_t stream) {
        return cclGatherV(
            from.data(), count, into.data(), blocks.counts.data(), blocks.displacements.data(), elements.type, root,
            comm, stream);
      },
      [from, into] { into.restore(); });
}

ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::scatter(
    Tensors& outputs,
    Lists& inputs,
    const c10d::ScatterOptions& opts) {
  const bool is_root = opts.rootRank == rank_;
  const auto root = static_cast<int>(opts.rootRank);
  const auto call = begin(OpType::SCATTER, "rdmaccl:scatter", opts, place(only(outputs)));
  const auto into = Flat::output(only(outputs));
  if (is_root) {
    require_fit(only(inputs, size_), outputs[0], rank_);
  } else {
    TORCH_CHECK_VALUE(inputs.empty(), "rdmaccl: scatter takes a list of tensors from the root only");
  }
  const auto from = is_root ? FlatList::inputs(inputs[0]) : FlatList();
  const auto elements = moved(outputs[0].scalar_type());
  const auto count = elements.in(outputs[0]);
  const auto blocks = Blocks::in_a_row(from.counts(), elements.each);
  return make(
      call, is_root ? inputs[0] : Tensors{}, outputs,
      [&, comm = call.comm()](cclStream_t stream) {
        return cclScatterV(
            from.data(), blocks.counts.data(), blocks.displacements.data(), into.data(), count, elements.type, root,
            comm, stream);
      },
      [from, into] { into.restore(); });
}

ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::reduce_scatter(
    Tensors& outputs,
    Lists& inputs,
    const c10d::ReduceScatterOptions& opts) {
  require_fit(only(inputs, size_), only(outputs), rank_);
  const auto call = begin(OpType::REDUCE_SCATTER, "rdmaccl:reduce_scatter", opts, place(outputs[0]));
  const auto from = FlatList::inputs(inputs[0]);
  const auto into = Flat::output(outputs[0]);
  const auto comm = call.comm();
  const Operator op(opts.reduceOp, outputs[0].scalar_type(), comm);
  const auto elements = op.elements();
  const auto count = elements.in(outputs[0]);
  const auto blocks = Blocks::in_a_row(from.counts(), elements.each);
  return make(
      call, inputs[0], outputs,
      [&, comm](cclStream_t stream) {
        return from.is_even()
            ? cclReduceScatter(from.data(), into.data(), count, elements.type, op.get(), comm, stream)
            : cclReduceScatterV(
                  from.data(), into.data(), blocks.counts.data(), elements.type, op.get(), comm, stream);
      },
      [from, into] { into.restore(); });
}

ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::alltoall(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllToAllOptions& opts) {
  const auto size = static_cast<size_t>(size_);
  TORCH_CHECK_VALUE(
      outputs.size() == size && inputs.size() == size,
      "rdmaccl: lists of ", outputs.size(), " and ", inputs.size(), " tensors for ", size_, " ranks");
  require_fit(outputs, inputs[static_cast<size_t>(rank_)], rank_);
  const auto call = begin(OpType::ALLTOALL, "rdmaccl:all_to_all", opts, place(inputs[0]));
  const auto from = FlatList::inputs(inputs);
  const auto into = FlatList::outputs(outputs);
  const auto elements = moved(inputs[0].scalar_type());
  // The lengths are between two ranks each: no rank knows whether all are the same.
  const auto sent = Blocks::in_a_row(from.counts(), elements.each);
  const auto received = Blocks::in_a_row(into.counts(), elements.each);
  return make(
      call, inputs, outputs,
      [&, comm = call.comm()](cclStream_t stream) {
        return cclAlltoAllv(
            from.data(), sent.counts.data(), sent.displacements.data(), into.data(), received.counts.data(),
            received.displacements.data(), elements.type, comm, stream);
      },
      [from, into] { into.restore(); });
}

}  // namespace rdmaccl
