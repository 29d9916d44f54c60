// What a call gives back: `torch.distributed.Work`.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>

namespace rdmaccl {

using std::chrono::milliseconds;

// What is known of a call when it is issued.
struct Title {
  c10d::OpType type;
  // Shown by the profiler.
  const char* profiling;
};

class RdmacclWork : public c10d::Work {
 public:
  // `inputs` is looked at when a profiler is on.
  RdmacclWork(int rank, const Title& title, const std::vector<at::Tensor>& inputs, uint64_t sequence, milliseconds timeout);

  // The tensors that `result` and the future give. Before `done`.
  void set_outputs(std::vector<at::Tensor> outputs);
  void set_outputs(const std::vector<std::vector<at::Tensor>>& outputs);

  // Ends it, once; NULL: well. Continuations of its future run on this thread.
  void done(std::exception_ptr error = nullptr);

  bool isCompleted() override;
  bool isSuccess() const override;
  // Zero: as long as it takes. Otherwise raises when it has not ended by then; the call goes on.
  bool wait(milliseconds timeout) override;
  void synchronize() override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  uint64_t getSequencenumber() const override;
  // An override since torch 2.15.
  milliseconds getTimeout() const;
  // Without the lock; a moment late.
  bool has_ended() const {
    return ended_.load(std::memory_order_acquire);
  }

 protected:
  // Waits for the end for so long; zero: as long as it takes. Whether it has come.
  bool ends_within(milliseconds timeout);
  // What a `wait` that was in vain says.
  std::string too_late(milliseconds timeout) const;
  const std::vector<at::Tensor>& outputs() const {
    return outputs_;
  }
  // A future for tensors on these devices, and what it gives.
  c10::intrusive_ptr<c10::ivalue::Future> make_future(std::vector<c10::Device> devices) const;
  c10::IValue value() const;

 private:
  void tell(c10::ivalue::Future& future) const;
  // The device that the outputs are on, if it is not the host.
  std::vector<c10::Device> devices() const;

  std::vector<at::Tensor> outputs_;
  // Where the outputs are a list of lists: how many are in each.
  std::vector<size_t> lists_;
  uint64_t sequence_;
  milliseconds timeout_;
  std::atomic<bool> ended_ = false;
  // Made when somebody asks for it; under `mutex_`, as `settled_`: whoever makes it later tells it of the end himself.
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool settled_ = false;
};

}  // namespace rdmaccl
