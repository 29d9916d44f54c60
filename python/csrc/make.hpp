// The one way in which collectives are made.
#pragma once

#include "process_group.hpp"

namespace rdmaccl {

template <class Outputs, class Issue, class After>
ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::make(
    const Call& call,
    const Tensors& inputs,
    Outputs&& outputs,
    Issue issue,
    After after) {
  const auto sequence = sequence_.fetch_add(1, std::memory_order_relaxed) + 1;
  auto work = c10::make_intrusive<RdmacclWork>(rank_, call.title, inputs, sequence, call.timeout);
  work->set_outputs(std::forward<Outputs>(outputs));
  try {
    if (call.is_async) {
      communicator_->enqueue(work, issue, std::move(after), call.timeout, call.title.profiling);
      return remember(work);
    }
    communicator_->run(issue, call.timeout, call.title.profiling);
    after();
  } catch (...) {
    work->done(std::current_exception());
    throw;
  }
  work->done();
  return work;
}

// Makes calls together: those that fit each other go at once, and they end as one.
template <class Each>
cclResult_t together(size_t count, Each&& each) {
  if (count == 1) {
    return each(0);
  }
  cclGroupStart();
  for (size_t i = 0; i < count; ++i) {
    // A refusal comes out of the group's end as well.
    each(i);
  }
  return cclGroupEnd();
}

}  // namespace rdmaccl
