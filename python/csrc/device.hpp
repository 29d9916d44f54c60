// CUDA devices, by the interfaces that PyTorch has for devices of any kind: nothing of CUDA is compiled in or linked, so that one
// build is for a torch with CUDA and for one without.
#pragma once

#include "communicator.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <atomic>
#include <memory>

namespace rdmaccl {

// The stream that PyTorch's operators on this device go to, on this thread.
c10::Stream current_stream(c10::Device device);

// Where current work on the device is, for others to wait for.
std::unique_ptr<c10::Event> mark(const c10::Stream& stream);

// What a group has for one device: a communicator, and the stream on which its calls go.
class DeviceQueue {
 public:
  DeviceQueue(Settings settings, c10::Device device);

  Communicator& communicator() {
    return communicator_;
  }
  const Communicator& communicator() const {
    return communicator_;
  }
  c10::Device device() const {
    return stream_.device();
  }
  const c10::Stream& stream() const {
    return stream_;
  }
  cclStream_t handle() const {
    return handle_;
  }
  // Whether the communicator is there for calls.
  bool is_joined() const {
    return joined_.load(std::memory_order_acquire);
  }
  void set_joined() {
    joined_.store(true, std::memory_order_release);
  }

 private:
  Communicator communicator_;
  c10::Stream stream_;
  cclStream_t handle_;
  std::atomic<bool> joined_ = false;
};

// A thread's stay on a queue's stream. The stream begins with what comes now when the thread's own stream has done what it was given
// before; until the end of the stay, operators go to the queue's stream: copies that a call needs, and its results' way back.
class Stay {
 public:
  explicit Stay(std::shared_ptr<DeviceQueue> queue);

  const std::shared_ptr<DeviceQueue>& queue() const {
    return queue_;
  }
  // Where the thread came from.
  const c10::Stream& caller() const {
    return caller_;
  }
  // Has the allocator know that the queue's stream uses a tensor, which the caller may drop before it is done.
  void keep(const std::vector<at::Tensor>& tensors) const;
  void keep(const std::vector<std::vector<at::Tensor>>& lists) const;

 private:
  std::shared_ptr<DeviceQueue> queue_;
  c10::Stream caller_;
  c10::StreamGuard guard_;
};

}  // namespace rdmaccl
