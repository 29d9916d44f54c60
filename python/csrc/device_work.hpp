// A call on a device: over for the host when it is enqueued, and for a stream when that has waited for it.
#pragma once

#include "device.hpp"
#include "work.hpp"

namespace rdmaccl {

class DeviceWork final : public RdmacclWork {
 public:
  DeviceWork(
      int rank,
      const Title& title,
      const std::vector<at::Tensor>& inputs,
      uint64_t sequence,
      milliseconds timeout,
      std::shared_ptr<DeviceQueue> queue);

  // The call and all that belongs to it is on the queue's stream, which is this thread's.
  void issued();
  // Has a stream wait for its end.
  void block(const c10::Stream& stream) const {
    end_.block(stream);
  }

  // Whether the device is done with it; asks, and does not wait.
  bool isCompleted() override;
  bool isSuccess() const override;
  // Also what has ended the communicator while this call was not over.
  std::exception_ptr exception() const override;
  // Without a timeout the current stream waits, and the host does not; only a barrier is one for the host too. With a timeout the
  // host waits. What has gone wrong so far is raised.
  bool wait(milliseconds timeout) override;
  void synchronize() override;
  void blockCurrentStream();
  // The tensors; their contents are there for streams that have waited.
  std::vector<at::Tensor> result() override;
  // Is there at once, with the streams that wait for it behind the call.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  // Nobody watches a device's calls to say how they ended.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;

 private:
  // Keeps how it ended, once it has.
  void look() const;
  bool ends_on_device_within(milliseconds timeout);

  std::shared_ptr<DeviceQueue> queue_;
  c10::Event end_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  // Under `mutex_`.
  mutable bool is_over_ = false;
  mutable std::exception_ptr error_;
};

}  // namespace rdmaccl
