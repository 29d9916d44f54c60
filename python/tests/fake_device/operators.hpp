// PyTorch's operators on the fake devices: memory and copies by the driver, everything else on the CPU with copies there and back.
#pragma once

#include "guard.hpp"

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include <bit>
#include <cstring>

namespace fake {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::CUDA);

// Pinned memory between a tensor and a device, kept for the next one.
class Bounce {
 public:
  Bounce(size_t bytes, c10::Device device) : size_(std::bit_ceil(bytes)) {
    const std::lock_guard lock(mutex());
    auto& free = kept()[size_];
    if (free.empty()) {
      const On on(device.index());
      call("cuMemHostAlloc", &at_, size_, 3u);
    } else {
      at_ = free.back();
      free.pop_back();
    }
  }
  ~Bounce() {
    const std::lock_guard lock(mutex());
    kept()[size_].push_back(at_);
  }
  Bounce(const Bounce&) = delete;
  Bounce& operator=(const Bounce&) = delete;

  void* data() const {
    return at_;
  }
  Address address() const {
    return reinterpret_cast<Address>(at_);
  }
  // How many there are that nobody uses.
  static uint64_t idle() {
    const std::lock_guard lock(mutex());
    uint64_t count = 0;
    for (const auto& [size, free] : kept()) {
      count += free.size();
    }
    return count;
  }

 private:
  static std::mutex& mutex() {
    static auto* const made = new std::mutex();
    return *made;
  }
  static std::map<size_t, std::vector<void*>>& kept() {
    static auto* const made = new std::map<size_t, std::vector<void*>>();
    return *made;
  }

  size_t size_;
  void* at_ = nullptr;
};

inline Address address(const at::Tensor& tensor) {
  return reinterpret_cast<Address>(tensor.data_ptr());
}

// From its first element to its last.
inline size_t extent(const at::Tensor& tensor) {
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    last += (tensor.size(i) - 1) * tensor.stride(i);
  }
  return tensor.numel() == 0 ? 0 : static_cast<size_t>(last + 1) * tensor.element_size();
}

// Enqueues a copy on the device's current stream.
inline void enqueue(Address to, Address from, size_t bytes, c10::Device on_device) {
  const On on(on_device.index());
  call("cuMemcpyAsync", to, from, bytes, handle(guard().getStream(on_device)));
}

// A tensor of the CPU with the same elements at the same strides; waits for the current stream.
inline at::Tensor pull(const at::Tensor& tensor) {
  const auto options = tensor.options().device(at::kCPU);
  auto made = at::empty_strided(tensor.sizes(), tensor.strides(), options);
  if (const auto bytes = extent(tensor); bytes > 0) {
    const Bounce bounce(bytes, tensor.device());
    enqueue(bounce.address(), address(tensor), bytes, tensor.device());
    guard().synchronizeStream(guard().getStream(tensor.device()));
    std::memcpy(made.data_ptr(), bounce.data(), bytes);
  }
  return made;
}

// Pinned memory that copies may still read.
class Bounces {
 public:
  void keep(std::unique_ptr<Bounce> bounce, c10::Event end) {
    const std::lock_guard lock(mutex_);
    used_.emplace_back(std::move(bounce), std::move(end));
  }
  void collect() {
    const std::lock_guard lock(mutex_);
    used_.remove_if([](const auto& one) { return one.second.query(); });
  }

 private:
  std::mutex mutex_;
  std::list<std::pair<std::unique_ptr<Bounce>, c10::Event>> used_;
};

inline Bounces& bounces() {
  static auto* const made = new Bounces();
  return *made;
}

// Writes a tensor of the CPU with the same strides to the device; enqueued, as a copy from pageable memory is.
inline void push(const at::Tensor& to, const at::Tensor& from) {
  if (const auto bytes = extent(to); bytes > 0) {
    bounces().collect();
    auto bounce = std::make_unique<Bounce>(bytes, to.device());
    std::memcpy(bounce->data(), from.data_ptr(), bytes);
    enqueue(address(to), bounce->address(), bytes, to.device());
    c10::Event end(c10::kCUDA);
    end.record(guard().getStream(to.device()));
    bounces().keep(std::move(bounce), std::move(end));
  }
}

inline at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool) {
  const bool is_plain = to.is_cuda() && from.is_cuda() && to.is_contiguous() && from.is_contiguous() &&
      to.sizes() == from.sizes() && to.scalar_type() == from.scalar_type() && to.device() == from.device();
  if (is_plain) {
    if (to.numel() > 0) {
      enqueue(address(to), address(from), to.nbytes(), to.device());
    }
    return to;
  }
  const auto source = from.is_cuda() ? pull(from) : from;
  if (!to.is_cuda()) {
    return to.copy_(source);
  }
  // What lies between the elements stays.
  auto room = to.is_non_overlapping_and_dense()
      ? at::empty_strided(to.sizes(), to.strides(), to.options().device(at::kCPU))
      : pull(to);
  room.copy_(source);
  push(to, room);
  return to;
}

inline at::Tensor empty(
    c10::SymIntArrayRef size,
    std::optional<at::ScalarType> type,
    std::optional<at::Layout>,
    std::optional<at::Device> where,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard on(where.value_or(guard().getDevice()));
  return at::detail::empty_generic_symint(size, &allocator(), kKeys, c10::dtype_or_default(type), format);
}

inline at::Tensor empty_strided(
    c10::SymIntArrayRef size,
    c10::SymIntArrayRef stride,
    std::optional<at::ScalarType> type,
    std::optional<at::Layout>,
    std::optional<at::Device> where,
    std::optional<bool>) {
  const c10::DeviceGuard on(where.value_or(guard().getDevice()));
  return at::detail::empty_strided_symint_generic(size, stride, &allocator(), kKeys, c10::dtype_or_default(type));
}

inline const at::Tensor& resize(
    const at::Tensor& tensor,
    c10::SymIntArrayRef size,
    std::optional<at::MemoryFormat>) {
  const auto made = at::empty_symint(size, tensor.options());
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(made.storage());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(made.sizes());
  return tensor;
}

inline at::Tensor copy_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) {
    to.resize_(from.sizes());
  }
  to.copy_(from);
  return to;
}

inline at::Scalar item(const at::Tensor& tensor) {
  return pull(tensor).item();
}

inline void record_stream(at::Tensor& tensor, c10::Stream stream) {
  allocator().record(tensor.storage().data_ptr(), stream);
}

inline void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

// Views are the same on all devices, and those that torch has for CUDA touch no device.
inline bool is_view(const std::string& name) {
  static const std::set<std::string> views{
      "aten::as_strided", "aten::view", "aten::view.dtype", "aten::_reshape_alias", "aten::unfold", "aten::view_as_real",
      "aten::view_as_complex", "aten::set_.source_Storage_storage_offset", "aten::set_.source_Tensor", "aten::is_set_to",
      "aten::alias", "aten::_conj", "aten::_neg_view"};
  return views.contains(name);
}

// In place of what this torch has for CUDA.
inline void install_operators() {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  const std::set<std::string> own{
      "aten::copy_", "aten::empty.memory_format", "aten::empty_strided", "aten::resize_", "aten::_copy_from_and_resize",
      "aten::_local_scalar_dense", "aten::record_stream"};
  for (const auto& op : c10::Dispatcher::singleton().getRegistrationsForDispatchKey(c10::DispatchKey::CPU)) {
    const auto name = op.overload_name.empty() ? op.name : op.name + "." + op.overload_name;
    if (name.starts_with("aten::") && !own.contains(name) && !is_view(name)) {
      library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
    }
  }
  library.impl("aten::copy_", TORCH_FN(copy));
  library.impl("aten::empty.memory_format", TORCH_FN(empty));
  library.impl("aten::empty_strided", TORCH_FN(empty_strided));
  library.impl("aten::resize_", TORCH_FN(resize));
  library.impl("aten::_copy_from_and_resize", TORCH_FN(copy_and_resize));
  library.impl("aten::_local_scalar_dense", TORCH_FN(item));
  library.impl("aten::record_stream", TORCH_FN(record_stream));
}

}  // namespace fake
