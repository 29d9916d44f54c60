#include "cargo.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace rdmaccl {

Cargo::Cargo(Flat flat) : flat_(std::move(flat)) {
  const auto device = flat_.row().device();
  if (!device.is_cpu()) {
    host_ = host_room_for(flat_.row());
    before_ = mark(current_stream(device));
  }
}

Cargo Cargo::sent(const at::Tensor& tensor) {
  return Cargo(Flat::input(tensor));
}

Cargo Cargo::received(const at::Tensor& tensor) {
  return Cargo(Flat::output(tensor));
}

void* Cargo::data() const {
  return host_.defined() ? address(host_) : flat_.data();
}

template <class Copy>
void Cargo::on_stream(Copy copy) const {
  const auto device = flat_.row().device();
  const auto stream = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  const c10::StreamGuard guard(stream);
  before_->block(stream);
  copy();
  stream.synchronize();
}

void Cargo::load() const {
  if (host_.defined()) {
    on_stream([&] { overwrite(host_, flat_.row()); });
  }
}

void Cargo::deliver() const {
  if (host_.defined()) {
    on_stream([&] {
      overwrite(flat_.row(), host_);
      flat_.restore();
    });
  } else {
    flat_.restore();
  }
}

}  // namespace rdmaccl
