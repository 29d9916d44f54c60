// What a transfer carries: host memory of a tensor, or for a tensor on a device, its bytes in host memory.
#pragma once

#include "device.hpp"
#include "layout.hpp"

#include <memory>

namespace rdmaccl {

class Cargo {
 public:
  // For a tensor that is sent, and for one that is filled. What was put on the current stream before comes before.
  static Cargo sent(const at::Tensor& tensor);
  static Cargo received(const at::Tensor& tensor);

  void* data() const;
  // Brings the bytes to the host; waits for the device, if they are on one. Before they are sent.
  void load() const;
  // Brings received bytes to where they belong; when it returns, all streams find them there.
  void deliver() const;

 private:
  explicit Cargo(Flat flat);
  // Does this on the stream for copies, behind the mark, and waits for it.
  template <class Copy>
  void on_stream(Copy copy) const;

  Flat flat_;
  // Of a device's tensor.
  at::Tensor host_;
  std::shared_ptr<c10::Event> before_;
};

}  // namespace rdmaccl
