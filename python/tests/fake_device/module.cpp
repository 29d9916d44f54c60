// CUDA for tests, in a process without a GPU: PyTorch's devices, memory, streams, events and operators over the fake driver of
// ccl-fake-cuda. A tensor here is a CUDA tensor for everything that asks PyTorch, and its memory is none that the host can touch.
#include "operators.hpp"

#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/csrc/utils/pybind.h>

namespace fake {

c10::DeviceIndex current_device() {
  return device;
}

c10::StreamId current_stream() {
  return guard().getStream({c10::kCUDA, device}).id();
}

namespace {

// Stops streams until it is opened.
class Gate {
 public:
  explicit Gate(c10::DeviceIndex index) : device_(index) {
    const On on(index);
    call("cuMemHostAlloc", &number_, sizeof(uint32_t), 3u);
    *static_cast<volatile uint32_t*>(number_) = 0;
  }
  // Has the current stream wait.
  void hold() const {
    const On on(device_);
    const auto stream = guard().getStream({c10::kCUDA, device_});
    call("cuStreamWaitValue32_v2", handle(stream), reinterpret_cast<Address>(number_), 1u, 0u);
  }
  void open() const {
    std::atomic_ref(*static_cast<uint32_t*>(number_)).store(1);
  }

 private:
  c10::DeviceIndex device_;
  // Never freed: a stream may still look.
  void* number_ = nullptr;
};

// DDP's clock, for which torch has one that asks CUDA.
class Timer final : public c10d::Timer {
 public:
  explicit Timer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event, Event) override {
    return std::nullopt;
  }
};

// What autograd asks of CUDA.
struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override {
    return true;
  }
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
};

// In the place of torch's own if this file is loaded before torch asks for them, which it does when it is imported.
const bool has_hooks = [] {
  const auto make = [](at::CUDAHooksArgs none) -> std::unique_ptr<at::CUDAHooksInterface> {
    return std::make_unique<Hooks>(none);
  };
  at::CUDAHooksRegistry()->Register("CUDAHooks", make, c10::REGISTRY_PREFERRED);
  return true;
}();

void install() {
  const auto timer = [](c10::Device where) -> std::unique_ptr<c10d::Timer> { return std::make_unique<Timer>(where); };
  c10d::TimerRegistry()->Register(c10::kCUDA, timer, c10::REGISTRY_PREFERRED);
  const c10::impl::DeviceGuardImplRegistrar registrar(c10::kCUDA, &guard());
  c10::SetAllocator(c10::kCUDA, &allocator(), 255);
  install_operators();
}

}  // namespace

}  // namespace fake

namespace py = pybind11;

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("install", &fake::install, "Puts the fake devices in the place of CUDA's, for this process and for ever");
  module.def("new_stream", [](int device) { return fake::new_stream(static_cast<c10::DeviceIndex>(device)).id(); });
  module.def(
      "set_stream",
      [](int device, int64_t id) {
        const c10::Device of(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
        return fake::guard().exchangeStream(c10::Stream(c10::Stream::UNSAFE, of, id)).id();
      },
      "Makes a stream the thread's current one of its device; which one was");
  module.def(
      "synchronize",
      [](int device) {
        const c10::Device of(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
        fake::guard().synchronizeStream(fake::guard().getStream(of));
      },
      py::call_guard<py::gil_scoped_release>(),
      "Waits for the current stream");
  module.def(
      "is_idle",
      [](int device) {
        const c10::Device of(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
        return fake::guard().queryStream(fake::guard().getStream(of));
      },
      "Whether the current stream has nothing to do");
  module.def("set_device", [](int device) { fake::device = static_cast<c10::DeviceIndex>(device); });
  module.def(
      "script",
      [](const std::string& text) {
        std::array<char, 512> why{};
        const int failed = fake::ask("fake_cuda_script", text.c_str(), 0, why.data(), why.size());
        TORCH_CHECK(failed == 0, why.data());
      },
      "Has the driver follow a script: see ccl-fake-cuda");
  module.def(
      "live",
      [] {
        fake::bounces().collect();
        fake::allocator().collect();
        return reinterpret_cast<uint64_t (*)()>(fake::symbol("fake_cuda_live"))() - fake::Bounce::idle();
      },
      "What was made with the driver and not destroyed; device memory that is kept for reuse is there");
  py::class_<fake::Gate>(module, "Gate")
      .def(py::init([](int device) { return fake::Gate(static_cast<c10::DeviceIndex>(device)); }))
      .def("hold", &fake::Gate::hold)
      .def("open", &fake::Gate::open);
}
