// What PyTorch knows of CUDA's devices, streams and events, over the fake driver: as c10/cuda/impl/CUDAGuardImpl.h, but for the driver.
#pragma once

#include "allocator.hpp"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <thread>

namespace fake {

// The thread's device, and its stream of each.
inline thread_local c10::DeviceIndex device = 0;
inline thread_local std::array<Handle, kDevices> streams{};

inline Handle handle(const c10::Stream& stream) {
  return reinterpret_cast<Handle>(stream.id());
}

inline c10::Stream named(c10::DeviceIndex index, Handle handle) {
  return c10::Stream(c10::Stream::UNSAFE, {c10::kCUDA, index}, reinterpret_cast<c10::StreamId>(handle));
}

inline c10::Stream new_stream(c10::DeviceIndex index) {
  const On on(index);
  Handle made = nullptr;
  call("cuStreamCreate", &made, 1u);
  return named(index, made);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return c10::kCUDA;
  }
  c10::Device exchangeDevice(c10::Device to) const override {
    const auto before = getDevice();
    setDevice(to);
    return before;
  }
  c10::Device getDevice() const override {
    return {c10::kCUDA, device};
  }
  void setDevice(c10::Device to) const override {
    TORCH_CHECK(to.is_cuda() && to.index() < kDevices, "there is no ", to);
    if (to.has_index()) {
      device = to.index();
    }
  }
  void uncheckedSetDevice(c10::Device to) const noexcept override {
    device = to.index();
  }
  c10::Stream getStream(c10::Device of) const override {
    return named(of.index(), streams.at(static_cast<size_t>(of.index())));
  }
  c10::Stream getDefaultStream(c10::Device of) const override {
    return named(of.index(), nullptr);
  }
  // A few for everybody, as CUDA's pool.
  c10::Stream getStreamFromGlobalPool(c10::Device of, bool) const override {
    constexpr size_t kPool = 4;
    static std::mutex mutex;
    static std::array<std::vector<c10::Stream>, kDevices> pools;
    static size_t next = 0;
    const std::lock_guard lock(mutex);
    auto& pool = pools.at(static_cast<size_t>(of.index()));
    while (pool.size() < kPool) {
      pool.push_back(new_stream(of.index()));
    }
    return pool[next++ % kPool];
  }
  c10::Stream getNewStream(c10::Device of, int) const override {
    return new_stream(of.index());
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    const auto before = getStream(to.device());
    streams.at(static_cast<size_t>(to.device_index())) = handle(to);
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return handle(stream);
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return kDevices;
  }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    ask("cuEventDestroy_v2", event);
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    const On on(stream.device_index());
    if (*event == nullptr) {
      call("cuEventCreate", event, 2u);
    }
    call("cuEventRecord", *event, handle(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      const On on(stream.device_index());
      call("cuStreamWaitEvent", handle(stream), event, 0u);
    }
  }
  bool queryEvent(void* event) const override {
    const int code = event == nullptr ? 0 : ask("cuEventQuery", event);
    TORCH_CHECK(code == 0 || code == kNotReady, "cuEventQuery of the fake driver: error ", code);
    return code == 0;
  }
  void synchronizeEvent(void* event) const override {
    while (!queryEvent(event)) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  bool queryStream(const c10::Stream& stream) const override {
    const On on(stream.device_index());
    const int code = ask("cuStreamQuery", handle(stream));
    TORCH_CHECK(code == 0 || code == kNotReady, "cuStreamQuery of the fake driver: error ", code);
    return code == 0;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    const On on(stream.device_index());
    call("cuStreamSynchronize", handle(stream));
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    allocator().record(data, stream);
  }
};

inline const Guard& guard() {
  static const Guard* const made = new Guard();
  return *made;
}

}  // namespace fake
