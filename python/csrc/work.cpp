#include "work.hpp"

#include "errors.hpp"

#include <ATen/record_function.h>

#include <optional>

namespace rdmaccl {

namespace {

// Telling the profiler costs more than a short call; so only if there is one.
const char* title_for_profiler(const Title& title) {
  return at::hasCallbacks() ? title.profiling : nullptr;
}

}  // namespace

RdmacclWork::RdmacclWork(
    int rank,
    const Title& title,
    const std::vector<at::Tensor>& inputs,
    uint64_t sequence,
    milliseconds timeout)
    : Work(
          rank,
          title.type,
          title_for_profiler(title),
          at::hasCallbacks() ? std::optional(inputs) : std::nullopt),
      sequence_(sequence),
      timeout_(timeout) {}

void RdmacclWork::set_outputs(std::vector<at::Tensor> outputs) {
  outputs_ = std::move(outputs);
}

void RdmacclWork::set_outputs(const std::vector<std::vector<at::Tensor>>& outputs) {
  for (const auto& list : outputs) {
    outputs_.insert(outputs_.end(), list.begin(), list.end());
    if (outputs.size() > 1) {
      lists_.push_back(list.size());
    }
  }
}

void RdmacclWork::done(std::exception_ptr error) {
  finish(std::move(error));
  ended_.store(true, std::memory_order_release);
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(mutex_);
    settled_ = true;
    future = future_;
  }
  if (future) {
    tell(*future);
  }
}

bool RdmacclWork::isCompleted() {
  if (has_ended()) {
    return true;
  }
  const std::lock_guard lock(mutex_);
  return completed_;
}

bool RdmacclWork::isSuccess() const {
  const std::lock_guard lock(mutex_);
  return completed_ && !exception_;
}

bool RdmacclWork::ends_within(milliseconds timeout) {
  if (has_ended()) {
    return true;
  }
  std::unique_lock lock(mutex_);
  const auto over = [&] { return completed_; };
  if (timeout > kNoTimeout) {
    return cv_.wait_for(lock, timeout, over);
  }
  cv_.wait(lock, over);
  return true;
}

bool RdmacclWork::wait(milliseconds timeout) {
  if (!ends_within(timeout)) {
    raise(too_late(timeout));
  }
  if (exception_) {
    std::rethrow_exception(exception_);
  }
  return true;
}

std::string RdmacclWork::too_late(milliseconds timeout) const {
  return "rdmaccl: rank " + std::to_string(rank_) + " has waited for " + c10d::opTypeToString(opType_) +
      ", which has not ended: Timed out waiting " + std::to_string(timeout.count()) + "ms for operation to complete";
}

void RdmacclWork::synchronize() {
  wait(kNoTimeout);
}

std::vector<at::Tensor> RdmacclWork::result() {
  TORCH_CHECK(isCompleted(), "rdmaccl: the result of a call that is not over; wait() for it first");
  return outputs_;
}

uint64_t RdmacclWork::getSequencenumber() const {
  return sequence_;
}

milliseconds RdmacclWork::getTimeout() const {
  return timeout_;
}

c10::intrusive_ptr<c10::ivalue::Future> RdmacclWork::getFuture() {
  std::unique_lock lock(mutex_);
  if (future_) {
    return future_;
  }
  future_ = make_future(devices());
  const bool late = settled_;
  lock.unlock();
  if (late) {
    tell(*future_);
  }
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> RdmacclWork::make_future(std::vector<c10::Device> devices) const {
  const auto tensors = c10::ListType::create(c10::TensorType::get());
  return c10::make_intrusive<c10::ivalue::Future>(
      lists_.empty() ? tensors : c10::ListType::create(tensors), std::move(devices));
}

std::vector<c10::Device> RdmacclWork::devices() const {
  if (outputs_.empty() || outputs_[0].is_cpu()) {
    return {};
  }
  return {outputs_[0].device()};
}

c10::intrusive_ptr<c10::ivalue::Future> RdmacclWork::getFutureResult() {
  auto outcome = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  // Both ends come as a value.
  getFuture()->addCallback([outcome](c10::ivalue::Future& future) {
    const auto result = future.hasError() ? c10d::WorkResult::COMM_ERROR : c10d::WorkResult::SUCCESS;
    outcome->markCompleted(c10::IValue(static_cast<int64_t>(result)));
  });
  return outcome;
}

c10::IValue RdmacclWork::value() const {
  if (lists_.empty()) {
    return c10::IValue(outputs_);
  }
  std::vector<std::vector<at::Tensor>> lists;
  auto next = outputs_.begin();
  for (const auto count : lists_) {
    lists.emplace_back(next, next + static_cast<std::ptrdiff_t>(count));
    next += static_cast<std::ptrdiff_t>(count);
  }
  return c10::IValue(lists);
}

void RdmacclWork::tell(c10::ivalue::Future& future) const {
  if (exception_) {
    future.setError(exception_);
  } else {
    future.markCompleted(value());
  }
}

}  // namespace rdmaccl
