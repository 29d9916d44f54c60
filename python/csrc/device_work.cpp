#include "device_work.hpp"

#include "errors.hpp"
#include "store.hpp"

namespace rdmaccl {

DeviceWork::DeviceWork(
    int rank,
    const Title& title,
    const std::vector<at::Tensor>& inputs,
    uint64_t sequence,
    milliseconds timeout,
    std::shared_ptr<DeviceQueue> queue)
    : RdmacclWork(rank, title, inputs, sequence, timeout),
      queue_(std::move(queue)),
      end_(queue_->device().type()) {}

void DeviceWork::issued() {
  end_.record(queue_->stream());
  future_ = make_future({queue_->device()});
  // Records its events on this thread's streams.
  future_->markCompleted(value());
  if (recordFunctionEndCallback_) {
    recordFunctionEndCallback_();
    recordFunctionEndCallback_ = nullptr;
  }
}

void DeviceWork::look() const {
  const std::lock_guard lock(mutex_);
  if (!is_over_ && end_.query()) {
    error_ = queue_->communicator().fault();
    is_over_ = true;
  }
}

bool DeviceWork::isCompleted() {
  look();
  const std::lock_guard lock(mutex_);
  return is_over_;
}

bool DeviceWork::isSuccess() const {
  look();
  const std::lock_guard lock(mutex_);
  return is_over_ && !error_;
}

std::exception_ptr DeviceWork::exception() const {
  look();
  const std::lock_guard lock(mutex_);
  return is_over_ ? error_ : queue_->communicator().fault();
}

bool DeviceWork::ends_on_device_within(milliseconds timeout) {
  const Deadline deadline(timeout);
  for (Pauses pauses; !isCompleted();) {
    if (timeout > kNoTimeout && deadline.is_over()) {
      return false;
    }
    std::this_thread::sleep_for(pauses.next());
  }
  return true;
}

bool DeviceWork::wait(milliseconds timeout) {
  const bool host_waits = timeout > kNoTimeout || opType_ == c10d::OpType::BARRIER;
  if (host_waits && !ends_on_device_within(timeout)) {
    raise(too_late(timeout));
  }
  synchronize();
  return true;
}

void DeviceWork::synchronize() {
  block(current_stream(queue_->device()));
  if (const auto error = exception()) {
    std::rethrow_exception(error);
  }
}

void DeviceWork::blockCurrentStream() {
  block(current_stream(queue_->device()));
}

std::vector<at::Tensor> DeviceWork::result() {
  return outputs();
}

c10::intrusive_ptr<c10::ivalue::Future> DeviceWork::getFuture() {
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> DeviceWork::getFutureResult() {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "rdmaccl: get_future_result() of a call on CUDA tensors; ask is_completed() and exception(), or wait(timeout)");
}

}  // namespace rdmaccl
