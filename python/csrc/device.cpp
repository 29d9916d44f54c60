#include "device.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace rdmaccl {

namespace {

using Guard = c10::impl::VirtualGuardImpl;

// A template, for versions that do not tell what a stream is to the driver.
template <class Stream>
cclStream_t handle_of(const Stream& stream) {
  if constexpr (requires { stream.native_handle(); }) {
    return static_cast<cclStream_t>(stream.native_handle());
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "rdmaccl: CUDA tensors need a torch that tells a stream's handle (c10::Stream::native_handle); use a newer one");
  }
}

const c10::Stream& behind(const c10::Stream& later, const c10::Stream& earlier) {
  mark(earlier)->block(later);
  return later;
}

}  // namespace

c10::Stream current_stream(c10::Device device) {
  return Guard(device.type()).getStream(device);
}

std::unique_ptr<c10::Event> mark(const c10::Stream& stream) {
  auto event = std::make_unique<c10::Event>(stream.device_type());
  event->record(stream);
  return event;
}

DeviceQueue::DeviceQueue(Settings settings, c10::Device device)
    : communicator_(std::move(settings)),
      stream_(Guard(device.type()).getStreamFromGlobalPool(device)),
      handle_(handle_of(stream_)) {}

Stay::Stay(std::shared_ptr<DeviceQueue> queue)
    : queue_(std::move(queue)),
      caller_(current_stream(queue_->device())),
      guard_(behind(queue_->stream(), caller_)) {}

void Stay::keep(const std::vector<at::Tensor>& tensors) const {
  const Guard guard(queue_->device().type());
  for (const auto& tensor : tensors) {
    guard.recordDataPtrOnStream(tensor.storage().data_ptr(), queue_->stream());
  }
}

void Stay::keep(const std::vector<std::vector<at::Tensor>>& lists) const {
  for (const auto& list : lists) {
    keep(list);
  }
}

}  // namespace rdmaccl
