// The fake driver's functions, and the devices' contexts.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <cstdlib>

namespace fake {

using Handle = void*;
using Address = uint64_t;

constexpr int kNotReady = 600;
constexpr c10::DeviceIndex kDevices = 2;

inline void* symbol(const char* name) {
  // The library opens the same file by itself: there is one driver in the process.
  static void* const library = dlopen(std::getenv("RDMACCL_CUDA"), RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(library != nullptr, "RDMACCL_CUDA does not name the fake driver: ", dlerror());
  void* const found = dlsym(library, name);
  TORCH_CHECK(found != nullptr, "the fake driver has no ", name);
  return found;
}

// Calls a function of the driver; its code.
template <class... Arguments>
int ask(const char* name, Arguments... arguments) {
  return reinterpret_cast<int (*)(Arguments...)>(symbol(name))(arguments...);
}

// The same; anything but success is an error.
template <class... Arguments>
void call(const char* name, Arguments... arguments) {
  const int code = ask(name, arguments...);
  TORCH_CHECK(code == 0, name, " of the fake driver: error ", code);
}

// A device's primary context, kept as the runtime library keeps it.
inline Handle context(c10::DeviceIndex device) {
  static const auto contexts = [] {
    call("cuInit", 0u);
    std::array<Handle, kDevices> made{};
    for (int i = 0; i < kDevices; ++i) {
      call("cuDevicePrimaryCtxRetain", &made[static_cast<size_t>(i)], i);
    }
    return made;
  }();
  return contexts.at(static_cast<size_t>(device));
}

// A device's context is the thread's current one while this lives.
class On {
 public:
  explicit On(c10::DeviceIndex device) {
    call("cuCtxPushCurrent_v2", context(device));
  }
  ~On() {
    Handle popped = nullptr;
    ask("cuCtxPopCurrent_v2", &popped);
  }
  On(const On&) = delete;
  On& operator=(const On&) = delete;
};

}  // namespace fake
