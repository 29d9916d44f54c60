// The one way in which collectives are made.
#pragma once

#include "device_work.hpp"
#include "process_group.hpp"

namespace rdmaccl {

template <class Outputs, class Issue, class After>
ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::make(
    const Call& call,
    const Tensors& inputs,
    Outputs&& outputs,
    Issue issue,
    After after) {
  require_on(call.device, inputs);
  require_on(call.device, outputs);
  if (call.stay) [[unlikely]] {
    return make_on_device(call, inputs, outputs, issue, after);
  }
  auto work = c10::make_intrusive<RdmacclWork>(rank_, call.title, inputs, next_sequence(), call.timeout);
  work->set_outputs(std::forward<Outputs>(outputs));
  try {
    if (call.is_async) {
      call.communicator.enqueue(work, issue, std::move(after), call.timeout, call.title.profiling);
      return remember(work);
    }
    call.communicator.run(issue, call.timeout, call.title.profiling);
    after();
  } catch (...) {
    work->done(std::current_exception());
    throw;
  }
  work->done();
  return work;
}

template <class Outputs, class Issue, class After>
ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::make_on_device(
    const Call& call,
    const Tensors& inputs,
    const Outputs& outputs,
    Issue& issue,
    After& after) {
  const auto& stay = *call.stay;
  auto work =
      c10::make_intrusive<DeviceWork>(rank_, call.title, inputs, next_sequence(), call.timeout, stay.queue());
  work->set_outputs(outputs);
  try {
    call.communicator.submit(issue, stay.queue()->handle(), call.timeout, call.title.profiling);
    after();
    work->issued();
  } catch (...) {
    work->done(std::current_exception());
    throw;
  }
  if (!call.is_async) {
    // What the caller does with its tensors from now on comes after the call.
    work->block(stay.caller());
    return work;
  }
  stay.keep(inputs);
  stay.keep(outputs);
  return remember(work);
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
